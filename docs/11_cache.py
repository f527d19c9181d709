# %% [markdown]
r"""
# The KV cache

PLACEHOLDER
"""
