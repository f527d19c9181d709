# %% [markdown]
r"""
# Many heads

PLACEHOLDER
"""
