# %% [markdown]
r"""
# The block

PLACEHOLDER
"""
