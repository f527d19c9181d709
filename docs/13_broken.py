# %% [markdown]
r"""
# Break it on purpose

PLACEHOLDER
"""
