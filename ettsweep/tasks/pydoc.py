"""The English documentation that comes with Python: some eighty topics, tokenised when they are first asked for."""

from functools import cache

from ettsweep.tasks.corpus import Corpus, corpus_of
from ettsweep.tasks.registry import pydoc_file
from ettsweep.tasks.tokenizer import train_bpe
from ettsweep.vocabulary import bpe_size

VALIDATION_EVERY = 5
"""Each so manieth topic, by name, is for validation."""


def documents() -> list[str]:
    """Return the topics in the order of their names, each paragraph once: topics quote each other.

    Raises:
        DataMissingError: this Python comes without them.
    """
    pydoc_file()
    from pydoc_data.topics import topics

    seen = set[str]()
    found = []
    for _, text in sorted(topics.items()):
        paragraphs = [part for part in text.split("\n\n") if part.strip() and part not in seen]
        seen.update(paragraphs)
        if paragraphs:
            found.append("\n\n".join(paragraphs))
    return found


@cache
def pydoc_corpus(vocabulary: int) -> Corpus:
    """Return the tokenised topics, with a byte-pair encoding made of those for training.

    Args:
        vocabulary: n_vocab, special tokens included.

    Raises:
        DataMissingError: this Python comes without them.
    """
    texts = documents()
    is_val = [k % VALIDATION_EVERY == VALIDATION_EVERY - 1 for k in range(len(texts))]
    tokenizer = train_bpe((text for text, val in zip(texts, is_val, strict=True) if not val), bpe_size(vocabulary))
    return corpus_of(texts, tokenizer, is_val)
