"""Pages and messages are plain English: short sentences, and things called by their names."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ettsweep.cli import COMMANDS, data_text, named_sweeps

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md")))]

MEAN_WORDS, MOST_WORDS = 15, 35
"""Of the sentences of a page, or of all messages."""

MOST_FREE = 3
"""Per 1,000 words: `what is missing` where `missing runs` would do, and what a program is told or said to do."""

FREE = r"\b(?:what (?!is\b.*\?)|whatever|whoever|who (?:wants|has|would)|is told|are told|is said|are said)\b"


OLD = r"\b(?:(?:is|are) to (?:come|stop|save|go)|had not been asked|would tell|stands? still|taken up|goes on|anew|alike)\b"
"""What messages said, and people who tune models do not."""


def prose(page: str) -> list[str]:
    """Return the sentences of a page's prose: neither code, tables, headings, pictures nor front matter."""
    text = re.sub(r"^```.*?^```$", "\n\n", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"    |\s*\||#|!\[", line)]
    return sentences(re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines)))


def sentences(paragraphs: Iterable[str]) -> list[str]:
    plain = [re.sub(r"\[(.*?)\]\(.*?\)|`([^`]*)`", lambda m: m[1] or "code", each) for each in paragraphs]
    found = [sentence.strip(" -*\n") for each in plain for sentence in re.split(r"(?<=[.?!:;])\s+", each)]
    return [sentence for sentence in found if len(sentence.split()) > 1]


def messages() -> list[str]:
    """Return all texts of the package but its docstrings, and the help of commands, which is theirs.

    Errors, notes and help are among them, however they reach the user. Texts of fewer than three words are keys and
    units; those of several lines, and those with a backslash, are programs and patterns.
    """
    groups = [command.callback for app in (named_sweeps.app, data_text.app) for command in app.registered_commands]
    helps = [command.__doc__ or "" for command in (*COMMANDS.values(), *filter(None, groups))]
    found = [
        text for path in sorted((CHECKOUT / "ettsweep").rglob("*.py")) for text in texts(ast.parse(path.read_text()))
    ]
    return helps + [
        text for text in found if len(re.findall(r"\b[a-z]{2,}\b", text)) > 2 and not re.search(r"[\n\\]", text)
    ]


def texts(node: ast.AST, hole: str = "it") -> Iterator[str]:
    """Yield the texts of some code but docstrings, with `it` for each value in an f-string."""
    match node:
        case ast.Expr(ast.Constant()):
            return
        case ast.Constant(str(text)):
            yield text
        case ast.JoinedStr(parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else hole for part in parts)
            parts = [part for part in parts if isinstance(part, ast.FormattedValue)]
            yield from (text for part in parts for text in texts(part.value, hole))
        case _:
            yield from (text for child in ast.iter_child_nodes(node) for text in texts(child, hole))


def check(found: list[str]) -> None:
    lengths = [len(sentence.split()) for sentence in found]
    too_long = [sentence for sentence, length in zip(found, lengths, strict=True) if length > MOST_WORDS]
    assert too_long == []
    assert sum(lengths) / len(lengths) <= MEAN_WORDS
    free = [match for sentence in found for match in re.findall(FREE, sentence.lower())]
    assert 1000 * len(free) <= max(MOST_FREE * sum(lengths), 2000), free


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short_and_name_the_thing(page: str) -> None:
    check(prose((CHECKOUT / page).read_text()))


def test_messages_are_short_and_name_the_thing() -> None:
    found = sentences(messages())
    check(found)
    assert [sentence for sentence in found if re.search(OLD, sentence)] == []
