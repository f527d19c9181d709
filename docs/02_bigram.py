# %% [markdown]
r"""
# The bigram baseline

PLACEHOLDER
"""
