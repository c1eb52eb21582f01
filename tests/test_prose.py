"""Pages are plain English: short sentences, and things called by their names."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md")))]

MEAN_WORDS, MOST_WORDS = 15, 35
"""Of the sentences of a page."""

MOST_FREE = 3
"""Per 1,000 words: `what is missing` where `missing runs` would do, and what a program is told or said to do."""

FREE = r"\b(?:what (?!is\b.*\?)|whatever|whoever|who (?:wants|has|would)|is told|are told|is said|are said)\b"


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's prose: neither code, tables, headings, pictures nor front matter."""
    text = re.sub(r"^```.*?^```$", "\n\n", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"    |\s*\||#|!\[", line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines))
    plain = [re.sub(r"\[(.*?)\]\(.*?\)|`([^`]*)`", lambda m: m[1] or "code", each) for each in paragraphs]
    found = [sentence.strip(" -*\n") for each in plain for sentence in re.split(r"(?<=[.?!:;])\s+", each)]
    return [sentence for sentence in found if len(sentence.split()) > 1]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short_and_name_the_thing(page: str) -> None:
    found = sentences((CHECKOUT / page).read_text())
    lengths = [len(sentence.split()) for sentence in found]
    too_long = [sentence for sentence, length in zip(found, lengths, strict=True) if length > MOST_WORDS]
    assert too_long == []
    assert sum(lengths) / len(lengths) <= MEAN_WORDS
    free = [match for sentence in found for match in re.findall(FREE, sentence.lower())]
    assert 1000 * len(free) <= max(MOST_FREE * sum(lengths), 2000), free
