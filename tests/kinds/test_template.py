"""Placeholders, how their values are written, and what only a shell understands."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from ettsweep.errors import InputError
from ettsweep.kinds.rendered_files import RenderedFile
from ettsweep.kinds.template import parse, rendered, split_words, written

VALUES = {"lr": 2.0**-7, "wd": 1e-05, "seed": 3, "out": "/r/out", "id": "0a1b", "strategy": "mup", "devices": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--lr={lr}", "--lr=0.0078125"),
        ("{wd} {seed}", "1.0e-05 3"),
        ("{lr*0.5}|{0.5*lr}|{ lr * 2 * 2 }", "0.00390625|0.00390625|0.03125"),
        ("{{lr}} {out}/x.{id} {strategy}{devices}", "{lr} /r/out/x.0a1b mup2"),
    ],
)
def test_placeholders_are_replaced(text: str, expected: str) -> None:
    assert rendered(text, VALUES) == expected


@pytest.mark.parametrize("value", [1e-05, 1.0, 2.0**-1074, 123456.789, 1e22, 0.0])
def test_a_number_has_a_point_and_every_parser_reads_the_same(value: float) -> None:
    text = written(value)
    assert "." in text
    assert float(text) == json.loads(text) == value
    # YAML 1.1 asks for a sign in the exponent, too.
    assert yaml.safe_load(text) == value or "e" in text
    assert yaml.safe_load("1e-05") == "1e-05", "the reason for the point"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{lrr}", "did you mean {lr}?"),
        ("{seed*2}", "only products of lr or wd with numbers work"),
        ("{lr", "a brace is not closed"),
        ("lr}", "a brace is not opened"),
        ("{lr*wd}", "there is no placeholder {lr*wd}"),
    ],
)
def test_what_is_no_placeholder_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|brace|products") as caught:
        parse(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("command", ["p 'a b.py' --s \"c d\"", r"p a\ b.py", "p '$HOME' 'a|b' '*.py'", "p a~b x=[1,2]"])
def test_words_are_split_as_a_shell_would(command: str) -> None:
    assert split_words(command) == shlex.split(command)


@pytest.mark.parametrize(
    "command", ["a | b", "a > log.txt", "a && b", "cd x; a", 'a "$HOME/x"', "a `date`", "a *.txt", "a ~/x"]
)
def test_what_needs_a_shell_is_told_with_what_to_paste(command: str) -> None:
    with pytest.raises(ValueError, match="needs a shell") as caught:
        split_words(command)
    pasted = yaml.safe_load(str(caught.value).partition("or write ")[2])
    assert pasted == ["bash", "-o", "pipefail", "-c", command]


@pytest.mark.parametrize("command", ["   ", "a 'b"])
def test_an_empty_command_and_an_open_quote_are_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"a command is expected|no closing quotation"):
        split_words(command)


# --- files ------------------------------------------------------------------------------------------------------------


def filled(tmp_path: Path, name: str, text: str, places: dict[str, object]) -> str:
    """Return a file with some values put into it, as a run gets it."""
    (tmp_path / name).write_text(text)
    return RenderedFile.model_validate({"from": name, "set": places}).content(tmp_path, VALUES)


def test_settings_are_put_into_a_file_with_their_types(tmp_path: Path) -> None:
    places = {"optim.lr": "{lr}", "optim.wd": "{wd}", "seed": "{seed}", "new.dir": "{out}/a"}
    content = yaml.safe_load(filled(tmp_path, "conf.yaml", "optim: {lr: 1, name: adamw}\nname: x\n", places))
    optim = {"lr": 2.0**-7, "name": "adamw", "wd": 1e-05}
    assert content == {"optim": optim, "name": "x", "seed": 3, "new": {"dir": "/r/out/a"}}
    assert json.loads(filled(tmp_path, "conf.json", '{"lr": 1}', {"lr": "{lr}"})) == {"lr": 2.0**-7}
    toml = '# mine\n[optim]\nlr = 1  # tuned\nname = "adamw"\n[data]\ncrops = [224, 96]\n'
    text = filled(tmp_path, "conf.toml", toml, {"optim.lr": "{lr}", "optim.fused": True, "new.sub.seed": "{seed}"})
    assert tomllib.loads(text) == {
        "optim": {"lr": 2.0**-7, "name": "adamw", "fused": True},
        "data": {"crops": [224, 96]},
        "new": {"sub": {"seed": 3}},
    }
    assert "# mine" in text
    assert "# tuned" in text


def test_texts_are_replaced_that_are_there_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("lr = 0.04\nseed = 1337\nif x: {1}\n")
    file = RenderedFile.model_validate({"from": "train.py", "replace": {"lr = 0.04": "lr = {lr}", "1337": "{seed}"}})
    assert file.content(tmp_path, VALUES) == "lr = 0.0078125\nseed = 3\nif x: {1}\n"
    (tmp_path / "train.py").write_text("lr = 0.04\nlr = 0.04\nseed = 1337\n")
    with pytest.raises(InputError, match=r"'lr = 0\.04' must occur once, but occurs 2 times"):
        file.content(tmp_path, VALUES)


@pytest.mark.parametrize(
    ("name", "content", "value", "problem"),
    [
        ("conf.yaml", "a: 1", "{lr}", "a is not a mapping"),
        ("conf.yaml", "a: [", "{lr}", "conf.yaml"),
        ("conf.toml", "a: 1", "{lr}", "conf.toml: .* at line 1"),
        ("conf.toml", "", None, r"conf\.toml: TOML has no null"),
    ],
)
def test_a_file_that_does_not_fit_is_told(tmp_path: Path, name: str, content: str, value: object, problem: str) -> None:
    with pytest.raises((InputError, ValueError), match=problem):
        filled(tmp_path, name, content, {"a.b": value})
    with pytest.raises(InputError, match="cannot be read"):
        RenderedFile.model_validate({"from": "none.yaml", "set": {"a": 1}}).content(tmp_path, VALUES)
