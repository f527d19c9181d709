# %% [markdown]
r"""
# Positions

PLACEHOLDER
"""
