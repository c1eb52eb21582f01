"""Placeholders, how their values are written, and what only a shell understands."""

import json
import math
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from ettsweep.errors import InputError
from ettsweep.kinds.rendered_files import RenderedFile
from ettsweep.kinds.template import names_in, parse, rendered, split_words, written

VALUES = {"lr": 2.0**-7, "wd": 1e-05, "seed": 3, "out": "/r/out", "id": "0a1b", "strategy": "mup", "devices": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--lr={lr}", "--lr=0.0078125"),
        ("{wd} {seed}", "1.0e-05 3"),
        ("{lr*0.5}|{0.5*lr}|{ lr * 2 * 2 }", "0.00390625|0.00390625|0.03125"),
        ("{{lr}} {out}/x.{id}", "{lr} /r/out/x.0a1b"),
        ("plain", "plain"),
        ("{strategy}{devices}", "mup2"),
    ],
)
def test_placeholders_are_replaced(text: str, expected: str) -> None:
    assert rendered(text, VALUES) == expected


@pytest.mark.parametrize("value", [1e-05, 1.0, 0.1, 3e-10, 1e16, 2.0**-1074, 123456.789, 1e22, 0.0])
def test_a_number_has_a_point_and_every_parser_reads_the_same(value: float) -> None:
    text = written(value)
    assert "." in text
    assert float(text) == json.loads(text) == value
    # YAML 1.1 asks for a sign in the exponent, too.
    assert yaml.safe_load(text) == value or "e" in text


def test_yaml_reads_small_numbers_as_numbers() -> None:
    assert yaml.safe_load(written(1e-05)) == 1e-05
    assert yaml.safe_load("1e-05") == "1e-05", "the reason for the point"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{lrr}", "did you mean {lr}?"),
        ("{learning_rate}", "there is no placeholder {learning_rate}"),
        ("{seed*2}", "only lr and wd can be multiplied"),
        ("{lr", "a brace is not closed"),
        ("lr}", "a brace is not opened"),
        ("{}", "there is no placeholder {}"),
        ("{lr+1}", "there is no placeholder {lr+1}"),
        ("{lr*wd}", "there is no placeholder {lr*wd}"),
        ("{checkpoint}", "there is no placeholder {checkpoint}"),
    ],
)
def test_what_is_no_placeholder_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|brace|multiplied") as caught:
        parse(text)
    assert problem in str(caught.value)


def test_names_are_those_that_occur() -> None:
    assert names_in(["--lr {lr*0.1}", "{out}", "{{wd}}"]) == {"lr", "out"}


@pytest.mark.parametrize(
    "command",
    ["python a.py --x 1", "python 'a b.py' --s \"c d\"", r"python a\ b.py", "p '$HOME' 'a|b' '*.py'", "p a~b x=[1,2]"],
)
def test_words_are_split_as_a_shell_would(command: str) -> None:
    assert split_words(command) == shlex.split(command)


@pytest.mark.parametrize(
    ("command", "character"),
    [
        ("a | b", "|"),
        ("a > log.txt", ">"),
        ("a && b", "&"),
        ("cd x; a", ";"),
        ("a $HOME", "$"),
        ('a "$HOME/x"', "$"),
        ("a `date`", "`"),
        ("a *.txt", "*"),
        ("a ~/x", "~"),
        ("a < in", "<"),
    ],
)
def test_what_needs_a_shell_is_told_with_what_to_paste(command: str, character: str) -> None:
    with pytest.raises(ValueError, match="needs a shell") as caught:
        split_words(command)
    message = str(caught.value)
    assert message.startswith(f"{character} (")
    pasted = yaml.safe_load(message.partition("or write ")[2])
    assert pasted == ["bash", "-o", "pipefail", "-c", command]


@pytest.mark.parametrize("command", ["", "   ", "a 'b"])
def test_an_empty_command_and_an_open_quote_are_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"a command is expected|no closing quotation"):
        split_words(command)


# --- files ------------------------------------------------------------------------------------------------------------


def test_settings_are_put_into_a_file_with_their_types(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("optim: {lr: 1, name: adamw}\nname: x\n")
    file = RenderedFile.model_validate(
        {"from": "conf.yaml", "set": {"optim.lr": "{lr}", "optim.wd": "{wd}", "seed": "{seed}", "new.dir": "{out}/a"}}
    )
    content = yaml.safe_load(file.content(tmp_path, VALUES))
    assert content == {
        "optim": {"lr": 2.0**-7, "name": "adamw", "wd": 1e-05},
        "name": "x",
        "seed": 3,
        "new": {"dir": "/r/out/a"},
    }
    assert math.isclose(content["optim"]["wd"], 1e-05)
    (tmp_path / "conf.json").write_text('{"lr": 1}')
    file = RenderedFile.model_validate({"from": "conf.json", "set": {"lr": "{lr}"}})
    assert json.loads(file.content(tmp_path, VALUES)) == {"lr": 2.0**-7}
    (tmp_path / "conf.toml").write_text('# mine\n[optim]\nlr = 1  # tuned\nname = "adamw"\n[data]\ncrops = [224, 96]\n')
    file = RenderedFile.model_validate(
        {
            "from": "conf.toml",
            "set": {"optim.lr": "{lr}", "optim.fused": True, "new.sub.seed": "{seed}", "out": "{out}"},
        }
    )
    text = file.content(tmp_path, VALUES)
    assert tomllib.loads(text) == {
        "optim": {"lr": 2.0**-7, "name": "adamw", "fused": True},
        "data": {"crops": [224, 96]},
        "new": {"sub": {"seed": 3}},
        "out": VALUES["out"],
    }
    assert "# mine" in text
    assert "# tuned" in text


def test_texts_are_replaced_that_are_there_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("lr = 0.04\nseed = 1337\nif x: {1}\n")
    file = RenderedFile.model_validate({"from": "train.py", "replace": {"lr = 0.04": "lr = {lr}", "1337": "{seed}"}})
    assert file.content(tmp_path, VALUES) == "lr = 0.0078125\nseed = 3\nif x: {1}\n"
    (tmp_path / "train.py").write_text("lr = 0.04\nlr = 0.04\nseed = 1337\n")
    with pytest.raises(InputError, match=r"'lr = 0\.04' is there 2 times, and must be exactly once"):
        file.content(tmp_path, VALUES)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("conf.yaml", None, "cannot be read"),
        ("conf.yaml", "[1]", "a mapping"),
        ("conf.yaml", "a: 1", "a is no mapping"),
        ("conf.yaml", "a: [", "conf.yaml"),
        ("conf.toml", "a = 1", "a is no mapping"),
        ("conf.toml", "a: 1", "conf.toml: .* at line 1"),
    ],
)
def test_a_file_that_does_not_fit_is_told(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=problem):
        RenderedFile.model_validate({"from": name, "set": {"a.b": "{lr}"}}).content(tmp_path, VALUES)


def test_toml_has_no_null() -> None:
    with pytest.raises(ValueError, match=r"conf\.toml: TOML has no null"):
        RenderedFile.model_validate({"from": "conf.toml", "set": {"a": None}})
