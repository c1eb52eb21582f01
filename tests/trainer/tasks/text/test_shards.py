"""Blocks beside those of a plain loop, and shards beside what was put into them."""

import numpy as np
import pytest

from ettsweep.trainer.tasks.text.shards import ShardWriter, Texts, block_starts, shard_size, token_type, unpack


def texts_of(documents: list[list[int]]) -> Texts:
    """Return documents, given as lengths of sentences."""
    lengths = [length for document in documents for length in document]
    return Texts(
        np.cumsum([len(document) for document in documents], dtype=np.uint32),
        np.cumsum(lengths, dtype=np.uint32),
        np.arange(sum(lengths), dtype=np.uint32),
    )


def plain_starts(documents: list[list[int]], block: int) -> list[int]:
    """Fill blocks sentence by sentence."""
    starts, at = list[int](), 0
    for document in documents:
        capacity = 0
        for length in document:
            left = length
            if left > capacity:
                starts.append(at)
                capacity = block
            while left > block:  # a long sentence begins a block, and is cut
                at, left = at + block, left - block
                starts.append(at)
            at, capacity = at + left, capacity - left
    return starts


@pytest.mark.parametrize("block", [1, 2, 5, 8, 31, 512])
def test_blocks_hold_as_many_whole_sentences_of_a_document_as_fit(block: int) -> None:
    rng = np.random.default_rng(block)
    for documents, sentences, mean in [(1, 400, 6), (300, 5, 9), (80, 40, 3), (1, 1, 1), (3, 2, 700), (70, 1, 20)]:
        tolists = [(rng.geometric(1 / mean, sentences)).tolist() for _ in range(documents)]
        assert block_starts(texts_of(tolists), block).tolist() == plain_starts(tolists, block)


def test_a_long_sentence_is_cut_and_its_rest_goes_on_with_the_next() -> None:
    assert block_starts(texts_of([[3, 12, 4, 3], [2]]), 5).tolist() == [0, 3, 8, 13, 15, 19, 22]
    assert block_starts(texts_of([[3, 12, 3, 4], [2]]), 5).tolist() == [0, 3, 8, 13, 18, 22]
    assert block_starts(texts_of([[10, 1]]), 5).tolist() == [0, 5, 10]
    assert block_starts(texts_of([]), 5).tolist() == []


@pytest.mark.parametrize("n_vocab", [65_536, 65_537])
def test_a_shard_gives_back_what_was_put_in(n_vocab: int) -> None:
    rng = np.random.default_rng(0)
    writer = ShardWriter(n_vocab)
    documents = []
    for k in range(40):
        lengths = rng.integers(1, 700, rng.integers(1, 6)).astype(np.uint32)
        tokens = rng.integers(0, n_vocab, lengths.sum()).astype(np.uint32)
        tokens[0] = n_vocab - 1
        documents.append(("val" if k % 5 == 2 else "train", lengths, tokens))
        writer.add(documents[-1][0], lengths, tokens, 10)  # type: ignore[arg-type]
    data = writer.pack()
    counts = {section: writer.counts(section) for section in ("train", "val")}
    assert len(data) == shard_size(n_vocab, counts["train"], counts["val"])
    assert token_type(n_vocab).itemsize == (2 if n_vocab == 65_536 else 4)
    for section in ("train", "val"):
        mine = [(lengths, tokens) for folder, lengths, tokens in documents if folder == section]
        texts = unpack(data, section, n_vocab, counts["train"], counts["val"])
        assert texts.tokens.tolist() == np.concatenate([tokens for _, tokens in mine]).tolist()
        lengths = np.concatenate([lengths for lengths, _ in mine])
        assert np.diff(texts.sentence_ends, prepend=0).tolist() == lengths.tolist()
        assert np.diff(texts.document_ends, prepend=0).tolist() == [len(lengths) for lengths, _ in mine]
        assert (counts[section].documents, counts[section].text_bytes) == (len(mine), 10 * len(mine))
        assert counts[section].long_sentences == int((lengths > 512).sum()) > 0
        assert counts[section].blocks == len(plain_starts([lengths.tolist() for lengths, _ in mine], 512))
