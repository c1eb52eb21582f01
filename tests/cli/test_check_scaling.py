"""`check-scaling` as a user types it."""

import json
from pathlib import Path

import pytest
from support.commandline import ettsweep

SMALL = ("--model", "vit-digits", "--widths", "32,64,128", "--depth", 1, "--seeds", 3, "--steps", 2)


def test_it_checks_prints_and_writes(results: Path) -> None:
    # Three seeds of three narrow networks tell little but what is wrong by far: standard.
    result = ettsweep(
        "check-scaling", *SMALL, "--strategy", "standard", "--results", results, "--format", "json", code=1
    )
    data = json.loads(result.stdout)
    assert data["verdict"] == "off"
    assert {row["group"] for row in data["groups"] if row["verdict"] == "off"} >= {"patch", "pe", "head_bias"}
    folder = results / "check-scaling" / "vit-digits-standard-adamw"
    assert json.loads((folder / "check.json").read_text()) == data
    assert {path.name for path in folder.iterdir()} == {"check.json", "figure.svg", "figure.png", "figure.pdf"}
    assert data["provenance"]["packages"]["torch"]
    assert (data["widths"], data["seeds"], data["steps"]) == ([32, 64, 128], [0, 1, 2], 2)
    assert str(folder / "figure.png") in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--widths", "32,33,64"], 2, "--widths: width 33 is not divisible by heads 4; nearest width: 32, 36"),
        (["--out", "/proc/none"], 1, "/proc/none: cannot be written (No such file or directory); choose another"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    options: list[str], code: int, message: str, results: Path
) -> None:
    result = ettsweep("check-scaling", "--model", "vit-digits", "--results", results, *options, code=code)
    assert message in result.stderr
    assert not results.exists()
