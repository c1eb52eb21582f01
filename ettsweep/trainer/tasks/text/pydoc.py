"""The English documentation that comes with Python: some eighty topics, tokenised at first use."""

from collections.abc import Mapping, Sequence
from functools import cache

from ettsweep.errors import InputError, TooFewPairsError
from ettsweep.token_ids import bpe_size, vocabulary_size
from ettsweep.trainer.tasks.data_location import pydoc_file
from ettsweep.trainer.tasks.text.corpus import Corpus, corpus_from_texts
from ettsweep.trainer.tasks.text.tokenizer import train_bpe

VALIDATION_EVERY = 5
"""One topic in this many, in alphabetical order, is for validation."""


def documents() -> list[str]:
    """Return the topics in alphabetical order of their names, without repeated paragraphs.

    Raises:
        DataMissingError: this Python has no documentation.
    """
    pydoc_file()  # raises with a better message than the import below
    # A large dictionary, only for this task.
    from pydoc_data.topics import topics

    return without_repeated_paragraphs(topics)


def without_repeated_paragraphs(topics: Mapping[str, str]) -> list[str]:
    """Return the texts in order of their names, each without the paragraphs that an earlier one has.

    Topics quote each other; without this, validation texts would contain training text.
    """
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
    """Return the tokenised topics; the byte-pair encoding is trained on the training topics.

    Raises:
        DataMissingError: this Python has no documentation.
        InputError: the text is too short for so large a vocabulary.
    """
    try:
        return make_corpus(documents(), vocabulary)
    except TooFewPairsError as error:
        max_vocabulary = vocabulary_size(error.max_tokens)
        raise InputError(
            f"model.vocabulary: {vocabulary} is more than Python's documentation has tokens for: "
            f"--set model.vocabulary={max_vocabulary} or less"
        ) from None


def make_corpus(texts: Sequence[str], vocabulary: int) -> Corpus:
    """Return the corpus of texts. After a change of its tokens, raise `text_data.PYDOC_RULES`."""
    is_val = [k % VALIDATION_EVERY == VALIDATION_EVERY - 1 for k in range(len(texts))]
    tokenizer = train_bpe((text for text, val in zip(texts, is_val, strict=True) if not val), bpe_size(vocabulary))
    return corpus_from_texts(texts, tokenizer, is_val)
