# %% [markdown]
r"""
# One head of self-attention

PLACEHOLDER
"""
