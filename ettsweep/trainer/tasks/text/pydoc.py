"""The English documentation that comes with Python: some eighty topics, tokenised when they are first asked for."""

from collections.abc import Mapping, Sequence
from functools import cache

from ettsweep.errors import InputError, TooFewPairsError
from ettsweep.token_ids import bpe_size, vocabulary_size
from ettsweep.trainer.tasks.data_location import pydoc_file
from ettsweep.trainer.tasks.text.corpus import Corpus, corpus_of
from ettsweep.trainer.tasks.text.tokenizer import train_bpe

VALIDATION_EVERY = 5
"""Each so manieth topic, by name, is for validation."""


def documents() -> list[str]:
    """Return the topics in the order of their names.

    Raises:
        DataMissingError: this Python comes without them.
    """
    pydoc_file()
    from pydoc_data.topics import topics

    return unrepeated(topics)


def unrepeated(topics: Mapping[str, str]) -> list[str]:
    """Return texts in the order of their names without the paragraphs of earlier ones: topics quote each other."""
    earlier_paragraphs = set[str]()
    unique_texts = []
    for _, text in sorted(topics.items()):
        paragraphs = [
            paragraph for paragraph in text.split("\n\n") if paragraph.strip() and paragraph not in earlier_paragraphs
        ]
        earlier_paragraphs.update(paragraphs)
        if paragraphs:
            unique_texts.append("\n\n".join(paragraphs))
    return unique_texts


@cache
def pydoc_corpus(vocabulary: int) -> Corpus:
    """Return the tokenised topics, with a byte-pair encoding made of those for training.

    Raises:
        DataMissingError: this Python comes without them.
        InputError: they are too short for so large a vocabulary.
    """
    try:
        return tokenised(documents(), vocabulary)
    except TooFewPairsError as error:
        max_vocabulary = vocabulary_size(error.most)
        raise InputError(
            f"model.vocabulary: {vocabulary} is more than Python's documentation has tokens for: "
            f"--set model.vocabulary={max_vocabulary} or less"
        ) from None


def tokenised(texts: Sequence[str], vocabulary: int) -> Corpus:
    """Return texts as tokens; whoever changes what comes of them raises `location.PYDOC_RULES`."""
    is_val = [k % VALIDATION_EVERY == VALIDATION_EVERY - 1 for k in range(len(texts))]
    tokenizer = train_bpe((text for text, val in zip(texts, is_val, strict=True) if not val), bpe_size(vocabulary))
    return corpus_of(texts, tokenizer, is_val)
