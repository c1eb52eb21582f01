"""What `reader:` of a grid file may be, and what is said of what it may not."""

from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import InputError
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.registry import reader_of

MINE: dict[str, Any] = {"kind": "csv", "files": "mine.csv", "step": "round"}
READER = Reader.model_validate(MINE)


def test_a_name_a_pattern_a_file_and_a_mapping_are_readers(tmp_path: Path) -> None:
    assert reader_of("timm").files == ("**/summary.csv",)
    pattern = reader_of(r"step (?P<step>\d+) loss (?P<loss>\S+)")
    assert (pattern.kind, pattern.files, len(pattern.patterns)) == ("regex", (OUTPUT,), 1)
    (tmp_path / "mine.yaml").write_text("kind: csv\nfiles: mine.csv\nstep: round\n")
    assert reader_of("mine.yaml", tmp_path) == READER.model_copy(update={"name": "mine"})
    assert reader_of(MINE) == READER
    assert reader_of(READER) is READER
    assert reader_of({"kind": "jsonl"}).files == ("**/*.jsonl",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("timmm", r"unknown reader 'timmm'; did you mean 'timm'\? Known: composer, csv.*a pattern has named groups"),
        (
            r"loss (\d+)",
            r"is not the name of a reader, and as a pattern it needs named groups, such as \(\?P<val_loss>",
        ),
        ("(?P<loss>", "where: patterns.0: not a regular expression: missing \\)"),
        ({"kind": "cvs"}, "where: kind: input should be 'csv'.*did you mean 'csv'"),
        ({"kind": "csv", "file": "x"}, "where: file: unknown key; did you mean files"),
        ({"kind": "csv", "files": "../x"}, "files: '../x' leads outside of the run's folder"),
        ({"kind": "regex", "patterns": r"(?P<step>\d+)"}, "has only a step"),
        ({"kind": "regex", "patterns": r"(?P<a>\w+)", "split": "phase"}, r"split of kind regex is a mapping"),
    ],
)
def test_what_is_no_reader_is_refused(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reader_of(value, source="where")
