"""GPT-2's byte-level byte-pair encoding, by `tokenizers`, read or trained; sentence splitting; word boundaries."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from ettsweep.errors import DataMissingError, InputError, TooFewPairsError, short_message
from ettsweep.schema import canonical
from ettsweep.token_ids import FIRST_BPE, LEAST_BPE, vocabulary_size

# --- sentences --------------------------------------------------------------------------------------------------------

LINE_WHITE_SPACE = "\t\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE = "\n" + LINE_WHITE_SPACE
"""Unicode's white space, for a character class of a regular expression; Python's own \\s has four characters more."""

CLOSING = "\"'”’»)\\]}"

_SENTENCE_END = re.compile(rf"[.!?][{CLOSING}]*(?=[{WHITE_SPACE}])|\n[{LINE_WHITE_SPACE}]*\n")
_SPACES = re.compile(f"[{WHITE_SPACE}]+")
_IS_SPACE = re.compile(f"[{WHITE_SPACE}]").fullmatch


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, which add up to the text.

    A sentence ends after [.!?], with any closing quotes or brackets, if white space follows; and before a blank line.
    White space goes to the sentence that follows it. GPT-2's encoding never joins white space to the characters before
    it, so the tokens of the sentences are the tokens of the text.
    """
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if text[match.start()] == "\n":  # a blank line: white space before it goes to the next sentence, too
            end = match.start()
            while end > start and _IS_SPACE(text[end - 1]):
                end -= 1
        if end > start:
            sentences.append(text[start:end])
            start = end
    if start < len(text):
        sentences.append(text[start:])
    return sentences


# --- the encoding -----------------------------------------------------------------------------------------------------

LETTERS = frozenset(pre_tokenizers.ByteLevel.alphabet())
"""The characters that stand for the 256 bytes in GPT-2's files."""


class Tokenizer:
    """A byte-level byte-pair encoding (BPE). Byte-pair token k is token k + FIRST_BPE of the model.

    A special token, such as <|endoftext|>, keeps its id if it is in the vocabulary, but no text is encoded as it.

    Attributes:
        vocab: id of each byte-pair token.
        bpe_tokens: number of byte-pair ids, also of those that no token uses.
        n_vocab: size of the model's vocabulary, special tokens included.
        sha256: checksum of vocabulary and merges, independent of their files.
    """

    def __init__(self, model: models.Model) -> None:
        # Only the model: a tokenizer.json may have special tokens that match text.
        self._encoder = tokenizers.Tokenizer(model)
        # As GPT-2: its regular expression splits words, and no space is put before the first one.
        self._encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        self._encoder.decoder = decoders.ByteLevel()
        self.vocab: dict[str, int] = self._encoder.get_vocab()
        self.bpe_tokens = max(self.vocab.values(), default=-1) + 1
        self.n_vocab = vocabulary_size(self.bpe_tokens)

    @cached_property
    def sha256(self) -> str:
        # Sorted by id, since files list the same tokens in different orders.
        tokens = sorted((k, token) for token, k in self.vocab.items())
        merges = json.loads(self.to_json())["model"]["merges"]
        return hashlib.sha256(canonical([tokens, merges]).encode()).hexdigest()

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the concatenated token ids of all sentences, and the number of tokens of each sentence."""
        # The fast variant does not track offsets in the text.
        encoded = self._encoder.encode_batch_fast(sentences, add_special_tokens=False)
        ids = [encoding.ids for encoding in encoded]
        lengths = np.fromiter(map(len, ids), np.uint32, len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        return tokens + np.uint32(FIRST_BPE), lengths

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids of the model; special tokens are skipped."""
        ids = [int(token) - FIRST_BPE for token in tokens]
        text: str = self._encoder.decode([k for k in ids if 0 <= k < self.bpe_tokens], skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        """Return the content of a tokenizer.json."""
        text: str = self._encoder.to_str()
        return text


# --- reading and training ---------------------------------------------------------------------------------------------

GPT2_FILE_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of vocabulary and merges at Hugging Face and OpenAI."""


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a byte-level BPE from a tokenizer.json, or from a folder with one or with GPT-2's two files.

    Raises:
        DataMissingError: there are no such files.
        InputError: they cannot be read, or are of another type of tokenizer.
    """
    file = path if path.is_file() else path / "tokenizer.json"
    if file.is_file():
        with _named_errors(file):
            return _checked(file, tokenizers.Tokenizer.from_file(str(file)))
    for vocab, merges in ((path / first, path / second) for first, second in GPT2_FILE_NAMES):
        if vocab.is_file() and merges.is_file():
            with _named_errors(vocab):
                model = models.BPE.from_file(str(vocab), str(merges))
                return _checked(vocab, tokenizers.Tokenizer(model), is_plain=True)
    raise DataMissingError(
        f"tokenizer {path}: expected tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe"
        + ("" if path.is_dir() else "; it is not a folder")
    )


@contextmanager
def _named_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise InputError(f"{file}: cannot be read as a byte-level BPE ({short_message(error)})") from None


def _checked(file: Path, encoder: tokenizers.Tokenizer, is_plain: bool = False) -> Tokenizer:
    """Return the tokenizer after a check that it splits and merges like GPT-2's, and can encode any text."""
    data = json.loads(encoder.to_str())
    model, words = data["model"], data["pre_tokenizer"] or {}
    if words.get("type") == "Sequence" and len(words["pretokenizers"]) == 1:
        words = words["pretokenizers"][0]
    expected = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    problems = [] if model["type"] == "BPE" else [f"model is {model['type']}"]
    if not is_plain and expected.items() - words.items():
        problems.append(f"pre_tokenizer is {words.get('type', 'none')}, or with other options")
    if data["normalizer"]:
        problems.append(f"normalizer is {data['normalizer']['type']}")
    problems += [f"{key} is {model[key]}" for key in _OTHER_OPTIONS if model.get(key)]
    if not problems and (missing := LETTERS - encoder.get_vocab(with_added_tokens=False).keys()):
        problems.append(f"vocabulary has no token for {len(missing)} of the 256 bytes")
    if problems:
        raise InputError(
            f"{file}: a byte-level BPE like GPT-2's is needed (`--bpe-tokens N` trains one); its "
            f"{', its '.join(problems)}"
        )
    return Tokenizer(encoder.model)


_OTHER_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
"""Options that change a model's tokens, and that GPT-2's does not set."""


def train_bpe(texts: Iterable[str], bpe_tokens: int) -> Tokenizer:
    """Train a byte-level BPE of `bpe_tokens` tokens; the same texts give the same encoding.

    Raises:
        InputError: fewer tokens than bytes.
        TooFewPairsError: the texts have too few distinct pairs; the error carries the largest possible number.
    """
    if bpe_tokens < LEAST_BPE:
        raise InputError(f"byte-pair tokens: at least {LEAST_BPE} are needed, one for each byte, got {bpe_tokens}")
    encoder = tokenizers.Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # All 256 bytes are tokens from the start: any text can be encoded.
    trainer = trainers.BpeTrainer(
        vocab_size=bpe_tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    encoder.train_from_iterator(texts, trainer)
    # The trainer stops without an error when no pair is left to join.
    if (max_tokens := encoder.get_vocab_size()) < bpe_tokens:
        raise TooFewPairsError(
            f"the text is too short for {bpe_tokens} byte-pair tokens: {max_tokens} are possible", max_tokens
        )
    return Tokenizer(encoder.model)


# --- word boundaries --------------------------------------------------------------------------------------------------


def word_tables(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks [n_vocab]: tokens that begin with white space, and tokens that are white space only.

    Both exclude special tokens.
    """
    leads, is_space = (np.zeros(tokenizer.n_vocab, np.bool_) for _ in range(2))
    decoder = decoders.ByteLevel()
    for token, k in tokenizer.vocab.items():
        if LETTERS.issuperset(token):
            text = decoder.decode([token])
            leads[k + FIRST_BPE] = _SPACES.match(text) is not None
            is_space[k + FIRST_BPE] = _SPACES.fullmatch(text) is not None
    return leads, is_space


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the number of bytes of text of each token [n_vocab]; 0 for special tokens."""
    sizes = np.zeros(tokenizer.n_vocab, np.int64)
    for token, k in tokenizer.vocab.items():
        if LETTERS.issuperset(token):
            sizes[k + FIRST_BPE] = len(token)  # a letter stands for a byte
    return sizes


def word_starts(tokens: NDArray[Any], leads: NDArray[np.bool_], is_space: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the tokens of a sentence that start a word: the first, and those that begin with white space.

    No new word starts after a token of only white space, which belongs to the next word.
    """
    starts: NDArray[np.bool_] = leads[tokens]
    starts[1:] &= ~is_space[tokens[:-1]]
    starts[:1] = True
    return starts
