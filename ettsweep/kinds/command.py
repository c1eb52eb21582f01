"""The recipe of a run by a command: its block in a grid file, its checks, its identity."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ettsweep.errors import DataMissingError, InputError
from ettsweep.file_digests import data_digest, named_data
from ettsweep.kinds.own_code import InFile, OwnCodeRecipe, common_info, folders_of, read_stated, summary, with_code
from ettsweep.kinds.rendered_files import RenderedFile
from ettsweep.kinds.template import (
    PLACEHOLDERS,
    Value,
    names_in,
    split_words,
    written,
)
from ettsweep.project_code import Patterns, ProjectCode, find_code, project_root
from ettsweep.runs.spec import (
    RESUME_PLACEHOLDERS,
    TRAINING_LOSSES,
    USUAL_AXES,
    Block,
    Kind,
    Labels,
    Place,
    RecipeInfo,
    variable_of,
)
from ettsweep.schema import NotInId, OmitFromIdAt, Positive, StrictModel, locating
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.units import seconds_of

SECRET = re.compile(
    r"(^|_)(\w*TOKENS?|\w*KEYS?|\w*SECRETS?|PASS(WORD|WD)?|PAT|CREDENTIALS?)(_|\d|$)", re.IGNORECASE | re.ASCII
)
"""Names of environment variables with secrets."""

RESERVED_VARIABLES = ("ETTSWEEP_", "SLURM_", "CUDA_VISIBLE_DEVICES")
"""Prefixes of environment variables that ettsweep sets for each run."""

SCRIPT_SUFFIXES = (".py", ".sh", ".jl", ".R", ".pl", ".lua")

INTERPRETERS = ("python", "bash", "sh", "torchrun", "accelerate", "uv", "env", "srun", "deepspeed", "Rscript", "julia")
"""Prefixes of first words of a command that do not name the program."""


def _seconds(value: object) -> object:
    """Return a time such as 30s, 5min or 2h in seconds."""
    if isinstance(value, str):
        return seconds_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"a time is expected, such as 30s, 5min or 2h, got {value!r}")
    return float(value)


def _words(value: object) -> object:
    """Return the words of a command in one text."""
    if isinstance(value, str):
        return split_words(value)
    if not (isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value)):
        raise ValueError(f"a command as one text or a list of words is expected, got {value!r}")
    return [each if isinstance(each, str) else written(each) for each in value]


def _texts(value: object) -> object:
    """Return the values of a mapping as texts: YAML reads 1 as a number."""
    if isinstance(value, dict):
        return {str(key): written(each) if isinstance(each, int | float) else each for key, each in value.items()}
    return value


def _normal_folder(path: str) -> str:
    return "" if (normal := os.path.normpath(path)) == "." else normal


def _by_strategy(value: object) -> object:
    """Return words by the usual names of strategies: `s=1` is mup."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(
            "write words by strategy, such as {mup: --use-mup}; the list of strategies belongs beside `run:`"
        )
    try:
        by_name = [(strategy_name(parse_strategy(name)), words or []) for name, words in value.items()]
    except InputError as error:
        raise ValueError(str(error)) from None
    if twice := [name for name, count in Counter(name for name, _ in by_name).items() if count > 1]:
        raise ValueError(f"{' and '.join(twice)} occurs twice, under two names")
    return dict(by_name)


Seconds = Annotated[float, BeforeValidator(_seconds)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words), Field(strict=False)]
Texts = Annotated[dict[str, str], BeforeValidator(_texts)]
WordsByStrategy = Annotated[dict[str, Words], BeforeValidator(_by_strategy)]


class Resume(StrictModel):
    """How to resume a command.

    Attributes:
        checkpoint: `{out}/` and a regular expression, whose group `step` is the number of the step. The highest number
            wins.
        add: words to append if there is a checkpoint, with {checkpoint} and {step}.
        always: words to append to all attempts but the first, for a program that finds its own checkpoints.
    """

    checkpoint: str | None = None
    add: Words = ()
    always: Words = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.always) == bool(self.checkpoint):
            raise ValueError("resume: write either `checkpoint` with `add`, or `always`")
        if self.checkpoint is None:
            return self
        if not self.add:
            raise ValueError("resume: add is missing, such as `add: '--resume {checkpoint}'`")
        if not self.checkpoint.startswith("{out}/"):
            raise ValueError(f"checkpoint: must begin with {{out}}/, got {self.checkpoint!r}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"checkpoint: {self.pattern!r} is not a regular expression: {error}") from None
        if found := re.search(r"\{([a-z]\w*)\}", self.pattern):
            raise ValueError(f"checkpoint: {found[0]}: write a regular expression after {{out}}/")
        names_in(self.add, (*PLACEHOLDERS, *RESUME_PLACEHOLDERS))
        return self

    @property
    def pattern(self) -> str:
        """The regular expression of checkpoints, relative to the run's folder."""
        return (self.checkpoint or "").removeprefix("{out}/")


class Stop(StrictModel):
    """How to stop a command.

    Attributes:
        signal: for its leader, which saves and exits.
        grace: seconds until ettsweep kills all of its processes.
        silent: seconds without output or metrics until it fails; None for no limit.
    """

    signal: Literal["TERM", "INT", "HUP", "USR1", "USR2"] = "TERM"
    grace: Seconds = 30.0
    silent: Seconds | None = None


class Data(StrictModel):
    """Data whose digest is part of a run's id.

    Attributes:
        paths: of files and folders, or patterns.
        digest: of large files, `sampled` from both ends, or `full`.
    """

    paths: Patterns = ()
    digest: Literal["sampled", "full"] = "sampled"


def _data(value: object) -> object:
    return value if isinstance(value, dict | Data) else {"paths": value}


class CommandRecipe(OwnCodeRecipe):
    """A command for each run, with its placeholders replaced.

    Attributes:
        argv: the words of the command.
        reader: finds metrics in its files or its output; None if it writes them for ettsweep, see docs/own-code.md.
        metrics: patterns of further metrics to keep.
        resume: how to resume it; None to start over.
        stop: how to stop it.
        env: environment variables.
        files: files to write for each run, by path.
        workdir: its working directory, relative to `folder`.
        data: digest of its data; empty without any.
        data_rule: the files and digest of its data.
        strategies: words to append under a strategy.
        uses: `env` if it reads lr, wd and seed from the environment.
        gpus: devices of a run on each node.
        nodes: nodes of a run.
        trial: words of `ettsweep try` that shorten a run.
    """

    trainable: Literal["command"] = "command"
    argv: Annotated[Words, InFile("command")]
    reader: str | dict[str, Any] | None = None
    metrics: Annotated[Patterns, NotInId()] = ()
    resume: Annotated[Resume | None, NotInId()] = None
    stop: Annotated[Stop, NotInId()] = Stop()
    env: Texts = Field(default_factory=dict)
    files: dict[str, RenderedFile] = Field(default_factory=dict)
    workdir: Annotated[str, AfterValidator(_normal_folder), OmitFromIdAt("")] = ""
    data: Annotated[str, InFile(None)] = ""
    data_rule: Annotated[Data, BeforeValidator(_data), NotInId(), InFile("data")] = Data()
    strategies: Annotated[WordsByStrategy, OmitFromIdAt({})] = Field(default_factory=dict)
    uses: Annotated[Literal["env"] | None, NotInId()] = None
    gpus: Positive = 1
    nodes: Annotated[Positive, OmitFromIdAt(1)] = 1
    trial: Annotated[Words, NotInId(), InFile("try")] = ()

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise ValueError(f"env: {name!r} is not a name of a variable")
            if SECRET.search(name):
                raise ValueError(
                    f"env: {name} would be visible on the page and in each run's folder; set it in your shell, or "
                    "under `environment` of a launch profile"
                )
            if name.startswith(RESERVED_VARIABLES):
                raise ValueError(f"env: leave out {name}: ettsweep sets it for each run")
        return env

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.argv:
            raise ValueError("command: is empty")
        self.check_names(self.names_in(self.texts()))
        self.names_in(self.trial)
        for path, file in self.files.items():
            if not path.startswith("{out}/") or ".." in Path(path).parts:
                raise ValueError(f"files: {path}: must begin with {{out}}/")
            self.names_in(file.texts())
        return self

    def names_in(self, texts: Iterable[str]) -> set[str]:
        """Return the placeholders in texts; those of further axes and of variants among them.

        Raises:
            ValueError: there is no such placeholder.
        """
        return names_in(texts, (*PLACEHOLDERS, *self.inputs))

    def check_names(self, names: Collection[str], under: str = "") -> None:
        """Check that runs of different axes, variants and seeds differ, under each strategy.

        Raises:
            ValueError: they do not.
        """
        if self.uses != "env":
            usual = ("lr",) if self.usual_axes is None else self.usual_axes
            for name in (*usual, *self.inputs, *(("seed",) if self.seeds is None else ())):
                if name not in names:
                    none = ", or `seeds: none` beside `run:`" if name == "seed" else ""
                    raise ValueError(
                        f"command: {{{name}}} is missing{under}: runs of different {name} would be identical; add it, "
                        f"or write `uses: env` if the program reads {variable_of(name)}{none}"
                    )

    def texts(self, strategies: Collection[str] | None = None) -> Iterator[str]:
        """Yield all texts with placeholders except `resume`, of all strategies or some."""
        yield from self.argv
        for strategy, words in self.strategies.items():
            if strategies is None or strategy in strategies:
                yield from words
        yield from self.env.values()
        for path, file in self.files.items():
            yield path
            yield from file.texts()

    @property
    def program(self) -> str:
        """A word for the program: the script, or else the first word of the command."""
        for word in self.argv:
            if word.endswith(SCRIPT_SUFFIXES):
                return Path(word).name
        for flag, word in pairwise(self.argv):
            if flag == "-m":
                return word
        first = Path(self.argv[0]).name
        others = (Path(word).name for word in self.argv[1:] if not word.startswith("-") and "{" not in word)
        return next(others, first) if first.startswith(INTERPRETERS) and "-c" not in self.argv else first

    @property
    def run_folder(self) -> Path:
        """The working directory of the command."""
        return Path(self.folder, self.workdir)

    def data_digest(self) -> str:
        """Return the present digest of its data; empty without any.

        Raises:
            DataMissingError: some are missing.
        """
        rule = self.data_rule
        return data_digest(rule.paths, Path(self.folder), whole=rule.digest == "full") if rule.paths else ""

    def data_change(self) -> str:
        """Return how its data have changed since the request of the run; empty if they have not."""
        try:
            data = self.data_digest() if self.code else ""
        except DataMissingError as error:
            return str(error)
        if data == self.data:
            return ""
        names = ", ".join(self.data_rule.paths)
        return f"the data ({names}) have changed since the run was requested (digest {self.data}, now {data})"

    # --- training ---

    @property
    def kept_metrics(self) -> tuple[str, ...]:
        """Patterns of names of the metrics that go into metrics.jsonl."""
        return self.score.name, *TRAINING_LOSSES, *self.metrics


# --- as planner and views know it -------------------------------------------------------------------------------------


def _info(recipe: CommandRecipe) -> RecipeInfo:
    stated = "none: its own lines" if recipe.reader is None else "stated in the grid file"
    digest = "all contents" if recipe.data_rule.digest == "full" else "of large files both ends"
    names, resume = ", ".join(recipe.data_rule.paths), recipe.resume
    return RecipeInfo(
        labels=Labels(recipe.program),
        axes=_usual_axes(recipe),
        gpus=recipe.gpus,
        nodes=recipe.nodes,
        resume="none" if resume is None else "files" if resume.checkpoint else "program",
        checkpoint_pattern=resume.pattern if resume else "",
        stop_signal=recipe.stop.signal,
        stop_grace_s=recipe.stop.grace,
        particulars={
            "reader": recipe.reader if isinstance(recipe.reader, str) else stated,
            "data": f"{names} ({digest})" if names else "no data named",
        },
        **common_info(recipe),
    )


def _usual_axes(recipe: CommandRecipe) -> tuple[str, ...]:
    if recipe.usual_axes is not None:
        return recipe.usual_axes
    return USUAL_AXES if recipe.uses == "env" or "wd" in recipe.names_in(recipe.texts()) else ("lr",)


def _bind(recipe: CommandRecipe, data: str | None) -> CommandRecipe:
    if recipe.code:  # of a sweep: it keeps its code
        return recipe
    code = _project_code(recipe)
    if recipe.snapshot:
        for name in _named(recipe):
            if os.path.isabs(name) and os.path.relpath(name, code.folder) in code.files:  # noqa: PTH117
                raise InputError(
                    f"command: {name} is in the project, and runs train in a copy of it: write "
                    f"{os.path.relpath(name, recipe.run_folder)}, or `snapshot: false`"
                )
    return recipe.model_copy(update={"code": code.digest, "trains_in": code.digest, "data": recipe.data_digest()})


def _for_trial(recipe: CommandRecipe) -> CommandRecipe:
    ends_early = recipe.ends_early or bool(recipe.trial)  # `steps` is of whole runs
    return recipe.model_copy(update={"argv": (*recipe.argv, *recipe.trial), "trial": (), "ends_early": ends_early})


# --- its code ---------------------------------------------------------------------------------------------------------


def _project_code(recipe: CommandRecipe) -> ProjectCode:
    folder = Path(recipe.folder)
    named = [
        *(recipe.run_folder / name for name in _named(recipe)),
        *(folder / name for name in (*_sources(recipe), *_reader_file(recipe))),
    ]
    data = [path for name in recipe.data_rule.paths for path in named_data(folder, name)]
    return find_code(folder, recipe.code_rule, named=named, data=data, folders=_code_folders(recipe))


def _code_folders(recipe: CommandRecipe) -> tuple[Path, ...]:
    """Return further folders of the code."""
    above = [word for word in _named(recipe) if ".." in word]
    rule = recipe.code_rule
    patterns = [*_sources(recipe), *rule.add, *rule.only, *_reader_file(recipe)]
    return (
        Path(os.path.normpath(recipe.run_folder)),
        *folders_of(recipe.run_folder, above),
        *folders_of(Path(recipe.folder), patterns),
    )


def _named(recipe: CommandRecipe) -> list[str]:
    """Return the files of the command: `FILE`, `--config=FILE`, or in a text for a shell."""
    words = [word for words in (recipe.argv, *recipe.strategies.values()) for word in words]
    names = dict.fromkeys(name for word in words for name in re.split(r"[\s'\"=:;,|&()<>]+", word))
    return [name for name in names if name and os.path.isfile(recipe.run_folder / name)]  # noqa: PTH113


def _sources(recipe: CommandRecipe) -> list[str]:
    return [file.source for file in recipe.files.values()]


def _reader_file(recipe: CommandRecipe) -> list[str]:
    """Return the name of its reader's file, if there is one."""
    return [recipe.reader] if isinstance(recipe.reader, str) and recipe.reader.endswith((".yaml", ".yml")) else []


# --- checks -----------------------------------------------------------------------------------------------------------


def _read(block: Block, overrides: Sequence[str], location: str, folder: Path) -> CommandRecipe:
    recipe, source = read_stated(CommandRecipe, block, overrides, location, folder)
    with locating(source):
        if not recipe.run_folder.is_dir():
            raise InputError(f"workdir: there is no folder {recipe.run_folder}")
        _check_program(recipe)
        _check_reader(recipe)
        _check_files(recipe)
    return recipe


def _check_program(recipe: CommandRecipe) -> None:
    """Check that the first word of the command is a program here.

    Raises:
        InputError: it is not.
    """
    first = recipe.argv[0]
    found = shutil.which(first) if "/" not in first else shutil.which(str(recipe.run_folder / first))
    if not found and "{" not in first:
        script = recipe.run_folder / first
        if script.is_file():
            raise InputError(f"command: {first} is not executable: use chmod +x, or write [bash, {first}, ...]")
        raise InputError(f"command: there is no program {first} here (PATH is {os.environ.get('PATH', '')})")


def _check_reader(recipe: CommandRecipe) -> None:
    """Check that the reader exists, and may find the score.

    Raises:
        InputError: it does not, or cannot.
    """
    if recipe.reader is None:
        return
    from ettsweep.readers.registry import reader_of

    names, score = reader_of(recipe.reader, Path(recipe.folder)).group_names(), recipe.score.name
    if names is not None and score not in names:
        known = ", ".join(sorted(names)) or "none"
        raise InputError(f"score: the reader has no group {score}, only {known}")


def _check_files(recipe: CommandRecipe) -> None:
    """Check that scripts of the command exist, and that files can be written for a run.

    Raises:
        InputError: one does not, or cannot.
    """
    folder = Path(recipe.folder)
    for word in recipe.argv:
        name = word.rpartition("=")[2]
        if word.endswith((".py", ".sh")) and "{" not in word and not (recipe.run_folder / name).is_file():
            raise InputError(f"command: there is no file {name} in {recipe.run_folder}")
        _check_inside(recipe, "command", name, recipe.run_folder)
    for name in recipe.data_rule.paths:
        _check_inside(recipe, "data", name, folder)
    values: dict[str, Value] = {"lr": 1.0, "wd": 1.0, "seed": 0, "out": "out", "id": "0", "strategy": "standard"}
    values |= {"devices": recipe.gpus * recipe.nodes, **dict.fromkeys(recipe.inputs, 1.0)}
    for file in recipe.files.values():
        file.content(folder, values)


def _check_inside(recipe: CommandRecipe, key: str, name: str, folder: Path) -> None:
    """Check that a name relative to a folder does not lead out of the copied project.

    Raises:
        InputError: it does.
    """
    path = Path(os.path.normpath(folder / name))
    if not (recipe.snapshot and ".." in Path(name).parts and path.exists()):
        return
    if not path.is_relative_to(project_root(Path(recipe.folder), _code_folders(recipe))):
        raise InputError(
            f"{key}: {name} leads out of the project, and runs train in a copy of it: write an absolute path, such as "
            f"{path}, or `snapshot: false`"
        )


def _check_axes(recipe: CommandRecipe, values: Mapping[str, Sequence[float]], strategies: Sequence[str]) -> str:
    told = recipe.uses == "env" or "strategy" in recipe.names_in(recipe.texts())
    if not told and len({recipe.strategies.get(name, ()) for name in strategies}) < len(strategies):
        raise InputError(
            f"strategies: runs under {' and '.join(strategies)} would be identical; put {{strategy}} into the "
            "command, or words to append under `run:`, such as `strategies: {mup: --use-mup}`"
        )
    for name in strategies:
        try:
            recipe.check_names(recipe.names_in(recipe.texts([name])), f" under {name}")
        except ValueError as error:
            raise InputError(str(error)) from None
    # By the words of each strategy with some, else by the common words.
    told = all("wd" in recipe.names_in(recipe.texts([strategy])) for strategy in recipe.strategies or [""])
    if len(set(values.get("wd", ()))) > 1 and recipe.uses != "env" and not told:
        raise InputError(
            "command: {wd} is missing: runs of different wd would be identical; leave out the range of wd, or write "
            "`uses: env`"
        )
    return ""


def _check(recipe: CommandRecipe, place: Place) -> list[str]:
    results = str(place.results.resolve()) if place.results else ""
    if "out" in recipe.names_in(recipe.texts()) and (found := re.search(r"[\s=]", results)):
        return [f"--results: {results!r} has {found[0]!r}, which breaks commands with {{out}}: pass another folder"]
    return []


COMMAND = Kind(
    schema=CommandRecipe,
    info=_info,
    read=_read,
    check_axes=_check_axes,
    check=_check,
    check_data=lambda recipe, data, count: _check_program(recipe),
    bind=_bind,
    for_trial=_for_trial,
    summary=summary,
    project_code=_project_code,
    with_code=with_code,
)
