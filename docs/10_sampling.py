# %% [markdown]
r"""
# Sampling

PLACEHOLDER
"""
