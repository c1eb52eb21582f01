"""Blocks of sentences beside those of a plain loop, windows of consecutive tokens beside the stream of all documents."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from ettsweep.token_ids import START
from ettsweep.trainer.tasks.text.blocks import TextBlocks, Texts, TokenWindows


def texts_of(documents: Sequence[Sequence[int]], first: int = 0) -> Texts:
    """Return documents, given as lengths of sentences; ids count up."""
    lengths = [sum(document) for document in documents]
    return Texts(
        np.arange(first, first + sum(lengths), dtype=np.uint32),
        np.cumsum([0, *lengths], dtype=np.int32),
        np.array([end for document in documents for end in np.cumsum(document)], np.uint32),
        np.cumsum([0, *map(len, documents)], dtype=np.int32),
    )


def plain_blocks(documents: list[list[int]], block: int) -> list[list[int]]:
    """Fill blocks sentence by sentence; return the lengths of the sentences of each."""
    blocks = list[list[int]]()
    for document in documents:
        capacity = 0
        for length in document:
            left = length
            if left > capacity:
                blocks.append([])
                capacity = block
            while left > block:  # a long sentence begins a block, and is cut
                blocks[-1].append(block)
                blocks.append([])
                left -= block
            blocks[-1].append(left)
            capacity -= left
    return blocks


@pytest.mark.parametrize("block", [1, 5, 31])
def test_blocks_hold_as_many_whole_sentences_of_a_document_as_fit(block: int) -> None:
    rng = np.random.default_rng(block)
    documents, parts = list[list[int]](), list[Texts]()
    for count, sentences, mean in [(1, 400, 6), (300, 5, 9), (80, 40, 3), (1, 1, 1), (3, 2, 700), (70, 1, 20)]:
        made = [rng.geometric(1 / mean, sentences).tolist() for _ in range(count)]
        documents += made
        parts.append(texts_of(made))
    blocks, expected = TextBlocks(parts, block), plain_blocks(documents, block)
    assert [blocks.block(k).lengths_S.tolist() for k in range(len(blocks))] == expected
    assert blocks.sizes(np.arange(len(blocks))).tolist() == list(map(sum, expected))
    tokens = np.concatenate([blocks.block(k).tokens_T for k in range(len(blocks))])
    assert np.array_equal(tokens, np.concatenate([part.tokens for part in parts]))
    for beyond in (-1, len(blocks)):
        with pytest.raises(IndexError):
            blocks.block(beyond)


def stream(*parts: Texts) -> list[int]:
    """Return the stream of all documents, made token by token."""
    values = list[int]()
    for texts in parts:
        for begin, end in pairwise(texts.token_offsets):
            values += [START, *texts.tokens[begin:end].tolist()]
    return values


@pytest.mark.parametrize("tokens", [3, 60])
def test_windows_follow_each_other_through_all_documents_of_all_parts(tokens: int) -> None:
    documents = [((3, 2), (1,), (4, 4, 1)), ((1,),), ((2,),), ((30,), (1,))]
    parts = [texts_of(part, first=100 * k) for k, part in enumerate(documents, start=1)]
    windows, values = TokenWindows(parts, tokens), stream(*parts)
    expected = [values[k : k + tokens + 1] for k in range(0, len(values) - tokens, tokens)]
    assert [windows.window(k).tolist() for k in range(len(windows))] == expected
    for beyond in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows.window(beyond)
    assert len(TokenWindows([], 4)) == 0
