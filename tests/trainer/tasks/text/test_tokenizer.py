"""Encodings beside those of Hugging Face's own GPT-2 tokenizer, sentences beside whole texts, words beside str.split."""

import json
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from support.texts import TOPICS, gpt2_vocabulary, small_tokenizer, write_gpt2

from ettsweep.errors import DataMissingError, InputError, TooFewPairsError
from ettsweep.token_ids import FIRST_BPE, mask_id
from ettsweep.trainer.tasks.text.tokenizer import (
    LETTERS,
    Tokenizer,
    read_tokenizer,
    split_sentences,
    train_bpe,
    word_starts,
    word_tables,
)

Tables = tuple[NDArray[np.bool_], NDArray[np.bool_]]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("gpt2"))


# --- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", " Two!", " Three?", " Four"]),
        ('He said "no." She left (at 3.5 p.m.) then.', ['He said "no."', " She left (at 3.5 p.m.)", " then."]),
        ("A title\n\nA text", ["A title", "\n\nA text"]),
        ("One.  \n \t\n  Two", ["One.", "  \n \t\n  Two"]),
        ("What?! ... and", ["What?!", " ...", " and"]),
        ("3.14 and x.y", ["3.14 and x.y"]),
    ],
)
def test_sentences_end_after_full_stops_and_before_blank_lines(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def odd_texts(count: int) -> list[str]:
    """Return texts of what encodings stumble over: white space of all kinds, quotes, digits, scripts, joiners."""
    rng = random.Random(0)
    letters = [*"aZé中ñ09²½.!?…\"'”’»)]}(“-_,'s", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\v", "\f", "\x85", "\xa0"]
    letters += ["\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff"]
    letters += ["\x1c", "\x1d", "\x1e", "\x1f", "\x00", "😀", "\u0301", "'ll", "<|endoftext|>", "\n \n"]
    return ["".join(rng.choices(letters, k=rng.randrange(1, 60))) for _ in range(count)]


def test_tokens_of_sentences_are_those_of_the_whole_text(small: Tokenizer) -> None:
    odd = odd_texts(300)
    joining = train_bpe(odd, 1000)  # has tokens for whatever may be joined in such texts
    for text in [*TOPICS[::4], *odd]:
        sentences = split_sentences(text)
        assert "".join(sentences) == text
        assert all(sentences)
        for tokenizer in (small, joining):
            assert tokenizer.encode(sentences)[0].tolist() == tokenizer.encode([text])[0].tolist(), repr(text)


# --- the encoding -----------------------------------------------------------------------------------------------------


def test_gpt2s_files_give_its_tokens_and_a_vocabulary_of_50265(gpt2: Path) -> None:
    from transformers import GPT2TokenizerFast

    tokenizer = read_tokenizer(gpt2)
    assert (tokenizer.bpe_tokens, tokenizer.n_vocab, mask_id(tokenizer.n_vocab)) == (50257, 50265, 50264)
    theirs = GPT2TokenizerFast(str(gpt2 / "vocab.json"), str(gpt2 / "merges.txt"))
    texts = [text for text in [*TOPICS[:20], *odd_texts(300)] if "<|endoftext|>" not in text]
    for text in texts:
        tokens, lengths = tokenizer.encode(split_sentences(text))
        assert (tokens - FIRST_BPE).tolist() == theirs(text)["input_ids"]
        assert lengths.sum() == len(tokens)
        assert tokenizer.decode(tokens) == text
    tokens, _ = tokenizer.encode(["a <|endoftext|> b"])
    assert tokenizer.vocab["<|endoftext|>"] + FIRST_BPE not in tokens, "text is never turned into a special token"
    assert tokenizer.decode(tokens) == "a <|endoftext|> b"


@pytest.mark.slow
def test_all_forms_of_the_files_are_the_same_tokenizer(gpt2: Path, tmp_path: Path) -> None:
    from transformers import GPT2TokenizerFast

    first = read_tokenizer(gpt2)
    openai = read_tokenizer(write_gpt2(tmp_path / "openai", ("encoder.json", "vocab.bpe")))
    saved = GPT2TokenizerFast(str(gpt2 / "vocab.json"), str(gpt2 / "merges.txt"))
    saved.save_pretrained(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "vocab.json").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer.json").write_text(first.to_json())
    others = [openai, read_tokenizer(tmp_path / "saved"), read_tokenizer(tmp_path / "own")]
    assert {other.sha256 for other in [first, *others]} == {first.sha256}
    assert {other.n_vocab for other in others} == {50265}
    older = json.loads(first.to_json())
    older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]
    (tmp_path / "own" / "tokenizer.json").write_text(json.dumps(older))
    assert read_tokenizer(tmp_path / "own").sha256 == first.sha256


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is Whitespace"),
        ({"byte_fallback": True, "end_of_word_suffix": "</w>"}, "its end_of_word_suffix is </w>, its byte_fallback"),
        ({"vocab": {"a": 0}, "merges": []}, "its vocabulary has no token for 255 of the 256 bytes"),
    ],
)
def test_other_tokenizers_are_refused_with_the_reason(
    small: Tokenizer, tmp_path: Path, sections: dict[str, object], message: str
) -> None:
    data = json.loads(small.to_json())
    for key, value in sections.items():
        (data["model"] if key in data["model"] else data)[key] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_tokenizer(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/tokenizer.json: ")


def test_files_that_are_not_there_broken_or_of_another_model_are_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(DataMissingError, match=r"expected tokenizer\.json, or vocab\.json and merges\.txt"):
        read_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(InputError, match=r"vocab\.json: cannot be read"):
        read_tokenizer(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="its model is WordLevel"):
        read_tokenizer(tmp_path)


# --- training ---------------------------------------------------------------------------------------------------------


def test_a_text_too_short_for_an_encoding_says_how_many_tokens_it_gives() -> None:
    with pytest.raises(TooFewPairsError, match=r"^the text is too short for 1000 byte-pair tokens: 258 are"):
        train_bpe(["abc"], 1000)
    with pytest.raises(InputError, match="at least 256"):
        train_bpe(TOPICS, 255)


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(small: Tokenizer) -> Tables:
    return word_tables(small)


def words_of(tokenizer: Tokenizer, tables: Tables, sentence: str) -> list[str]:
    tokens, _ = tokenizer.encode([sentence])
    starts = word_starts(tokens, *tables)
    edges = [*np.flatnonzero(starts).tolist(), len(tokens)]
    return [tokenizer.decode(tokens[low:high]) for low, high in pairwise(edges)]


def test_words_are_what_stands_between_white_space_which_belongs_to_the_word_that_follows(
    small: Tokenizer, tables: Tables
) -> None:
    checked = 0
    for sentence in (sentence for text in TOPICS[::4] for sentence in split_sentences(text.strip())):
        words = words_of(small, tables, sentence)
        assert "".join(words) == sentence
        assert [word.strip() for word in words] == sentence.split()
        checked += len(words)
    assert checked > 10_000
    assert words_of(small, tables, "\n\n  Two words") == ["\n\n  Two", " words"]
    assert words_of(small, tables, "don't (stop)\tnow") == ["don't", " (stop)", "\tnow"]


def test_tables_know_white_space_of_several_bytes_and_no_special_token(gpt2: Path) -> None:
    vocab, _ = gpt2_vocabulary()
    tokenizer = read_tokenizer(gpt2)
    leads, space = word_tables(tokenizer)
    assert len(leads) == len(space) == 50265
    for token, expected in {"Ġthe": (True, False), "Ġ": (True, True), "Ċ": (True, True), "the": (False, False)}.items():
        k = vocab[token] + FIRST_BPE
        assert (leads[k], space[k]) == expected, token
    for special in (*range(FIRST_BPE), *range(50261, 50265), vocab["<|endoftext|>"] + FIRST_BPE):
        assert not leads[special]
        assert not space[special]
    letters = sorted(LETTERS)
    vocab = {letter: k for k, letter in enumerate(letters)} | {"ãĢ": 256, "ãĢĢ": 257, "ãĢĢx": 258}
    wide = Tokenizer(tokenizers.models.BPE(vocab, [("ã", "Ģ"), ("ãĢ", "Ģ"), ("ãĢĢ", "x")]))
    leads, space = word_tables(wide)  # an ideographic space, alone and before a letter
    assert leads[-6:-4].tolist() == [True, True]
    assert space[-6:-4].tolist() == [True, False]
