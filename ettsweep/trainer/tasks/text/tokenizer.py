"""GPT-2's byte-level byte-pair encoding, read from files or trained; sentence splitting; word boundaries.

The package `tokenizers` is imported only to encode text or to train an encoding: training a model does not need it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError, InputError, TooFewPairsError
from ettsweep.files import loads
from ettsweep.schema import canonical
from ettsweep.token_ids import FIRST_BPE, LEAST_BPE, vocabulary_size

if TYPE_CHECKING:
    import tokenizers

# --- sentences --------------------------------------------------------------------------------------------------------

LINE_WHITE_SPACE = "\t\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE_SPACE = "\n" + LINE_WHITE_SPACE
"""Unicode's white space, for a character class of a regular expression; Python's own \\s has four characters more."""

CLOSING = "\"'”’»)\\]}"

SPLITTER_VERSION = 1
"""Version of `split_sentences`. Raise it with a change of the rule: shards of another version are not reused."""

_SENTENCE_END = re.compile(rf"[.!?][{CLOSING}]*(?=[{WHITE_SPACE}])|\n[{LINE_WHITE_SPACE}]*\n")
_SPACES = re.compile(f"[{WHITE_SPACE}]*")
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


_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]

BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE}
BYTE_OF_LETTER |= {chr(256 + k): byte for k, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))}
"""The character that stands for each byte in GPT-2's files: printable bytes stand for themselves, others are mapped to
characters from U+0100 on, in order."""


class Tokenizer:
    """A byte-level byte-pair encoding (BPE). Byte-pair token k is token k + FIRST_BPE of the model.

    Special tokens of the files, such as <|endoftext|>, keep their ids, but no text is encoded as them.

    Attributes:
        vocab: id of each byte-pair token.
        merges: pairs of tokens, in the order in which they are joined.
        bpe_tokens: number of byte-pair ids, also of those that no token uses.
        n_vocab: size of the model's vocabulary, special tokens included.
        sha256: checksum of vocabulary and merges, whichever files they came from.
    """

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        self.vocab = dict(vocab)
        self.merges = list(merges)
        self.bpe_tokens = max(self.vocab.values()) + 1
        self.n_vocab = vocabulary_size(self.bpe_tokens)

    @cached_property
    def sha256(self) -> str:
        # Sorted by id, since files list the same tokens in different orders.
        tokens = sorted((k, token) for token, k in self.vocab.items())
        return hashlib.sha256(canonical([tokens, self.merges]).encode()).hexdigest()

    @cached_property
    def _encoder(self) -> "tokenizers.Tokenizer":
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        encoder = Tokenizer(models.BPE(vocab=self.vocab, merges=self.merges))
        # As GPT-2: its regular expression splits words, and no space is put before the first one.
        encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        encoder.decoder = decoders.ByteLevel()
        return encoder

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the concatenated token ids of all sentences, and the number of tokens of each sentence."""
        # The fast variant does not track offsets in the text, which are not needed.
        encoded = self._encoder.encode_batch_fast(sentences, add_special_tokens=False)
        ids = [encoding.ids for encoding in encoded]
        lengths = np.fromiter(map(len, ids), np.uint32, len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        return tokens + np.uint32(FIRST_BPE), lengths

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids of the model; special tokens are skipped."""
        ids = [int(token) - FIRST_BPE for token in tokens]
        return self._encoder.decode([k for k in ids if 0 <= k < self.bpe_tokens], skip_special_tokens=False)

    def to_json(self) -> str:
        """Return the content of a tokenizer.json, which `read_tokenizer_file` reads."""
        return self._encoder.to_str()


# --- reading and training ---------------------------------------------------------------------------------------------

GPT2_FILE_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of the vocabulary and of the merges, as Hugging Face and as OpenAI name them."""

EXPECTED_FILES = "tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe"


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a byte-level BPE from a folder with GPT-2's files or a tokenizer.json, or from such a .json file.

    Raises:
        DataMissingError: the files are missing, or cannot be read.
        InputError: they are of another type of tokenizer.
    """
    try:
        if folder.is_file() and folder.suffix == ".json":
            return read_tokenizer_file(folder)
        if (folder / "tokenizer.json").is_file():
            return read_tokenizer_file(folder / "tokenizer.json")
        for names in GPT2_FILE_NAMES:
            vocab, merges = (folder / name for name in names)
            if vocab.is_file() and merges.is_file():
                return _validated_tokenizer(vocab, _read_json(vocab), merges, _read_merges(merges))
        file_names = sorted(path.name for path in folder.iterdir())[:6]
    except UnicodeDecodeError as error:
        raise DataMissingError(f"tokenizer {folder}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise DataMissingError(f"tokenizer {error.filename or folder}: {error.strerror or error}") from None
    raise DataMissingError(
        f"tokenizer {folder}: expected {EXPECTED_FILES}; it holds {', '.join(file_names) or 'nothing'}"
    )


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json.

    The loader of `tokenizers` is not used: it renumbers special tokens and accepts duplicate ids.

    Raises:
        OSError: the file cannot be read.
        InputError: it is another type of tokenizer.
    """
    data = _read_json(path)
    model = data["model"] if isinstance(data.get("model"), dict) else {}
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise InputError(f"{path}: {_GPT2_BPE_REQUIRED}; its model is {model.get('type') or 'of unknown type'}")
    settings = {
        "pre_tokenizer": _unsupported_pre_tokenizer(data.get("pre_tokenizer")),
        "normalizer": data.get("normalizer"),
    }
    settings |= {key: model.get(key) for key in _UNSUPPORTED_OPTIONS}
    if problems := [f"{name} is {_abbreviate(value)}" for name, value in settings.items() if value]:
        raise InputError(f"{path}: {_GPT2_BPE_REQUIRED}; its {', its '.join(problems)}")
    try:
        # Older versions of `tokenizers` write a merge as one string, newer ones as a pair.
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        added = {str(token["content"]): int(token["id"]) for token in data.get("added_tokens") or []}
        return _validated_tokenizer(path, {**added, **model.get("vocab", {})}, path, merges)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise InputError(f"{path}: {_GPT2_BPE_REQUIRED}; its tokens or merges are not as in a tokenizer.json") from None


_GPT2_BPE_REQUIRED = "a byte-level BPE like GPT-2's is needed (`--bpe-tokens N` trains one)"

_UNSUPPORTED_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
"""Options of a model in a tokenizer.json that change its tokens, and that GPT-2's does not set."""


def _unsupported_pre_tokenizer(data: Any) -> object:
    """Return the part of a pre-tokenizer that differs from GPT-2's; None if nothing does."""
    # A sequence of one pre-tokenizer is the same as this one alone.
    if isinstance(data, dict) and data.get("type") == "Sequence" and len(data.get("pretokenizers") or []) == 1:
        data = data["pretokenizers"][0]
    if not isinstance(data, dict) or data.get("type") != "ByteLevel":
        return data or "none"
    if not data.get("use_regex", True) or data.get("add_prefix_space"):
        return data
    return None


def _abbreviate(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = loads(path.read_bytes())
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return value


def _read_merges(path: Path) -> list[tuple[str, ...]]:
    # Not splitlines(), which would also split at characters that stand for bytes, such as \x85.
    lines = path.read_text(encoding="utf-8").split("\n")
    return [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]


def _validated_tokenizer(
    path: Path, vocab: Mapping[str, Any], merges_path: Path, merges: list[tuple[str, ...]]
) -> Tokenizer:
    """Return the tokenizer after a check that it can encode any text."""
    ids = list(vocab.values())
    if not all(isinstance(k, int) and k >= 0 for k in ids) or len(set(ids)) != len(ids):
        raise InputError(f"{path}: token ids must be distinct integers from 0 on")
    if missing := [symbol for symbol in BYTE_OF_LETTER if symbol not in vocab]:
        raise InputError(
            f"{path}: {_GPT2_BPE_REQUIRED}; it has no token for {len(missing)} of the 256 bytes, "
            f"among them {missing[0]!r}"
        )
    pairs = list[tuple[str, str]]()
    for pair in merges:
        if len(pair) != 2 or any(token not in vocab for token in (*pair, "".join(pair))):
            pair_text = " ".join(map(str, pair))
            raise InputError(f"{merges_path}: merge {pair_text!r} joins tokens that {path.name} does not have")
        pairs.append((pair[0], pair[1]))
    return Tokenizer(vocab, pairs)


def train_bpe(texts: Iterable[str], bpe_tokens: int) -> Tokenizer:
    """Train a byte-level BPE of `bpe_tokens` tokens; the same texts give the same encoding.

    Raises:
        InputError: fewer tokens than bytes.
        TooFewPairsError: the texts have too few distinct pairs; the error carries the largest possible number.
    """
    from tokenizers import Tokenizer as Encoder
    from tokenizers import models, pre_tokenizers, trainers

    if bpe_tokens < LEAST_BPE:
        raise InputError(f"byte-pair tokens: at least {LEAST_BPE} are needed, one for each byte, got {bpe_tokens}")
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # All 256 bytes are tokens from the start, so that any text can be encoded.
    trainer = trainers.BpeTrainer(
        vocab_size=bpe_tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    encoder.train_from_iterator(texts, trainer)
    model = json.loads(encoder.to_str())["model"]
    # The trainer stops without an error when no pair is left to join.
    if (max_tokens := len(model["vocab"])) < bpe_tokens:
        raise TooFewPairsError(
            f"the text is too short for {bpe_tokens} byte-pair tokens: {max_tokens} are possible", max_tokens
        )
    return Tokenizer(model["vocab"], [(first, second) for first, second in model["merges"]])


# --- word boundaries --------------------------------------------------------------------------------------------------


def word_tables(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks [n_vocab]: tokens that begin with white space, and tokens that are white space only.

    Special tokens are in neither.
    """
    leads, is_space = (np.zeros(tokenizer.n_vocab, np.bool_) for _ in range(2))
    for token, k in tokenizer.vocab.items():
        if all(letter in BYTE_OF_LETTER for letter in token):
            text = bytes(BYTE_OF_LETTER[letter] for letter in token).decode("utf-8", "replace")
            leads[k + FIRST_BPE] = bool(text) and _IS_SPACE(text[0]) is not None
            is_space[k + FIRST_BPE] = bool(text) and _SPACES.fullmatch(text) is not None
    return leads, is_space


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the number of bytes of text of each token [n_vocab]; 0 for special tokens."""
    sizes = np.zeros(tokenizer.n_vocab, np.int64)
    for token, k in tokenizer.vocab.items():
        if all(letter in BYTE_OF_LETTER for letter in token):
            sizes[k + FIRST_BPE] = len(token)  # a letter stands for a byte
    return sizes


def word_starts(tokens: NDArray[Any], leads: NDArray[np.bool_], is_space: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the tokens of a sentence that start a word: the first, and those that begin with white space.

    After a token of white space alone, no new word starts: the white space belongs to the word that follows.
    """
    starts: NDArray[np.bool_] = leads[tokens]
    starts[1:] &= ~is_space[tokens[:-1]]
    starts[:1] = True
    return starts
