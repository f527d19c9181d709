"""Answers to the exercises of each page, as readers might give them: right ones, and wrong ones with words of the reason."""
