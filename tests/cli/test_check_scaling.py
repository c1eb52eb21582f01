"""`check-scaling` as a user types it."""

import json
import signal
import sys
from pathlib import Path

import pytest
from support.commandline import ctrl_c_at, ended, ettsweep, left_as_before, start, typed, wait_for

from ettsweep import cli

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


@pytest.mark.usefixtures("statistics")
def test_a_right_scaling_exits_0(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = ettsweep("check-scaling", "--model", "vit-digits", "--strategy", "s=0.25", "--seeds", 8, "--out", out)
    assert "off by" in result.stdout
    assert result.stderr.startswith("vit-digits under s=0.25: 4 heads, 2 blocks, 4 images of 4 patches; 8 seeds")
    assert (out / "figure.pdf").is_file()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--widths", "32,33,64"], 2, "--widths: width 33 is not divisible by heads 4; nearest width: 32, 36"),
        (["--widths", "32;64"], 2, "--widths: whole numbers with commas are expected, such as 96,192,384,768"),
        (["--strategy", "nkt"], 2, "unknown strategy 'nkt'; did you mean 'ntk'?"),
        (["--lr", "0"], 2, "--lr: a number between 0 and 1e30 is expected, got 0.0"),
        (["--seeds", "2"], 2, "--seeds"),
        (
            ["--out", "/proc/none"],
            1,
            "/proc/none: cannot be written (No such file or directory); choose another folder with --out",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    options: list[str],
    code: int,
    message: str,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["check-scaling", "--model", "vit-digits", "--results", str(results), *options]
    monkeypatch.setattr(sys, "argv", ["ettsweep", *arguments])
    with left_as_before(), pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    assert message in capsys.readouterr().err
    assert not results.exists()


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_no_file(results: Path) -> None:
    process = start("check-scaling", "--model", "vit-b16", "--results", results)
    folder = results / "check-scaling" / "vit-b16-ntk-adamw"
    wait_for(folder.is_dir, "the check to begin")
    process.send_signal(signal.SIGINT)
    assert "interrupted" in ended(process, 130).stderr
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("at", ["sympy:0", "mpmath:50"])
def test_ctrl_c_amid_an_import_leaves_no_file(at: str, results: Path) -> None:
    """torch imports these where the first network is built, which is after the folder has been made."""
    typed_result = typed("check-scaling", "--model", "vit-b16", "--results", results, code=130, env=ctrl_c_at(at))
    assert typed_result.stderr == "ettsweep: interrupted; nothing has been written\n"
    assert not (results / "check-scaling" / "vit-b16-ntk-adamw").exists()
