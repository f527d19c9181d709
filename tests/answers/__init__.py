"""Answers to each page's exercises, as readers might give them: right ones, and wrong ones with words of the reason."""
