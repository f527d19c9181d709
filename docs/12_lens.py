# %% [markdown]
r"""
# Looking inside our GPT

PLACEHOLDER
"""
