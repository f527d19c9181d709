# %% [markdown]
r"""
# Overfitting: a GPT that read only this book

PLACEHOLDER
"""
