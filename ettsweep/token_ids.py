"""How token ids are laid out: special tokens around those of a byte-pair encoding, as BART's code has them.

GPT-2's 50,257 byte-pair tokens give a vocabulary of 50,265.
"""

START, PAD, END, UNKNOWN = range(4)
FIRST_BPE = 4
"""Id of the first token of the byte-pair encoding."""

LEAST_BPE = 256
"""Tokens that any byte-pair encoding has: one for each byte."""

UNUSED = 3
"""Ids after the byte-pair tokens that no text has; the last id of all is the mask."""


def vocabulary_size(bpe_tokens: int) -> int:
    """Return n_vocab for a byte-pair encoding of so many tokens."""
    return FIRST_BPE + bpe_tokens + UNUSED + 1


def bpe_size(vocabulary: int) -> int:
    """Return how many byte-pair tokens fit into a vocabulary."""
    return vocabulary - vocabulary_size(0)


def mask_id(vocabulary: int) -> int:
    """Return the id of [MASK]."""
    return vocabulary - 1
