"""Parts of `make bench-all-gpu`: one session on a GPU, in steps that leave what they have measured."""


class NotMeasuredError(Exception):
    """This machine lacks what an item is about."""
