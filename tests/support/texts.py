"""Made text, and tokenizer files of GPT-2's form and size, for the tests of corpora."""

import json
from functools import cache
from itertools import islice, product
from pathlib import Path
from pydoc_data.topics import topics

from ettsweep.trainer.tasks.text.tokenizer import LETTERS, Tokenizer, train_bpe

TOPICS = [text for _, text in sorted(topics.items())]
"""Python's own documentation: some eighty documents, 465 kB."""

GPT2_SIZE = 50257


def paragraphs(size: int, seed: int = 0) -> str:
    """Return text of about so many bytes, paragraph by paragraph, no two alike."""
    text = "\n\n".join(TOPICS).split("\n\n")
    sections, length = list[str](), 0
    while length < size:
        k = len(sections) + seed
        sections.append(f"{text[k * 7919 % len(text)]} ({k})")
        length += len(sections[-1]) + 2
    return "\n\n".join(sections)


def small_tokenizer() -> Tokenizer:
    """Return an encoding of 400 tokens."""
    return train_bpe(TOPICS[:8], 400)


@cache
def gpt2_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges as GPT-2's are made: bytes, 50,000 merges, <|endoftext|>."""
    letters = sorted(LETTERS)
    trained = train_bpe(TOPICS, 3000)
    vocab = {letter: k for k, letter in enumerate(letters)}
    merges = list[tuple[str, str]]()
    values = ((a + b, c) for a, b, c in product(letters, repeat=3))
    items = (pair for a, b in islice(product(letters, repeat=2), 40_000) for pair in [(a, b)])
    for first, second in (*json.loads(trained.to_json())["model"]["merges"], *items, *islice(values, 60_000)):
        if len(merges) == 50_000:
            break
        if first in vocab and first + second not in vocab:
            vocab[first + second] = len(vocab)
            merges.append((first, second))
    vocab["<|endoftext|>"] = len(vocab)
    assert len(vocab) == GPT2_SIZE
    return vocab, merges


def write_gpt2(folder: Path, names: tuple[str, str] = ("vocab.json", "merges.txt")) -> Path:
    """Write the two files of a tokenizer of GPT-2's form and size."""
    vocab, merges = gpt2_vocabulary()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(json.dumps(vocab))
    lines = ["#version: 0.2", *(f"{first} {second}" for first, second in merges)]
    (folder / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
