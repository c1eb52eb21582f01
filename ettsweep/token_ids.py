"""The layout of token ids: special tokens around those of a byte-pair encoding, as in BART's code.

GPT-2's 50,257 byte-pair tokens give a vocabulary of 50,265.
"""

START, PAD, END, UNKNOWN = range(4)
FIRST_BPE = 4
"""Id of the first token of the byte-pair encoding."""

LEAST_BPE = 256
"""Every byte-level encoding has a token for each byte."""

UNUSED = 3
"""Ids after the byte-pair tokens that no text uses; the very last id is the mask."""


def vocabulary_size(bpe_tokens: int) -> int:
    """Return the vocabulary size for a byte-pair encoding of so many tokens."""
    return FIRST_BPE + bpe_tokens + UNUSED + 1


def bpe_size(vocabulary: int) -> int:
    """Return the number of byte-pair tokens that fit into a vocabulary."""
    return vocabulary - vocabulary_size(0)


def mask_id(vocabulary: int) -> int:
    """Return the id of [MASK]."""
    return vocabulary - 1
