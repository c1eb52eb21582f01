"""The recipe of a run that a command trains: what a grid file says of it, how it is checked, what its identity is."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ettsweep.errors import DataMissingError, InputError
from ettsweep.file_digests import data_digest, named_data
from ettsweep.kinds.own_code import OwnCodeRecipe, folders_of
from ettsweep.kinds.rendered_files import RenderedFile
from ettsweep.kinds.template import PLACEHOLDERS, RESUME_PLACEHOLDERS, Value, names_in, split_words, written
from ettsweep.project_code import CodeRule, Patterns, ProjectCode, as_code_rule, project_root
from ettsweep.runs.score_spec import StatedScore
from ettsweep.runs.trainable import TRAINING_LOSSES, Labels, RunContext
from ettsweep.runs.trainable_hooks import override_block
from ettsweep.schema import NotInId, OmitFromIdAt, Positive, StrictModel, locating, validate
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.units import seconds_of

SECRET = re.compile(
    r"(^|_)(\w*TOKENS?|\w*KEYS?|\w*SECRETS?|PASS(WORD|WD)?|PAT|CREDENTIALS?)(_|\d|$)", re.IGNORECASE | re.ASCII
)
"""Names of environment variables that hold what nobody else may see."""

RESERVED_VARIABLES = ("ETTSWEEP_", "SLURM_", "CUDA_VISIBLE_DEVICES")
"""Beginnings of names of environment variables that are set for each run."""

SCRIPT_SUFFIXES = (".py", ".sh", ".jl", ".R", ".pl", ".lua")

INTERPRETERS = ("python", "bash", "sh", "torchrun", "accelerate", "uv", "env", "srun", "deepspeed", "Rscript", "julia")
"""Beginnings of first words of a command that say nothing of what it trains."""


def _seconds(value: object) -> object:
    """Return a time such as 30s, 5min or 2h in seconds."""
    if isinstance(value, str):
        return seconds_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"a time is expected, such as 30s, 5min or 2h, got {value!r}")
    return float(value)


def _words(value: object) -> object:
    """Return the words of a command that is written as one text."""
    if isinstance(value, str):
        return split_words(value)
    if not (isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value)):
        raise ValueError(f"a command is expected, as one text or a list of words, got {value!r}")
    return [each if isinstance(each, str) else written(each) for each in value]


def _texts(value: object) -> object:
    """Return the values of a mapping as texts: YAML reads 1 as a number."""
    if isinstance(value, dict):
        return {str(key): written(each) if isinstance(each, int | float) else each for key, each in value.items()}
    return value


def _normal_folder(path: str) -> str:
    return "" if (normal := os.path.normpath(path)) == "." else normal


def _by_strategy(value: object) -> object:
    """Return words by the names that strategies have elsewhere: `s=1` is mup."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(
            "words by strategy are expected, such as {mup: --use-mup}; the list of strategies belongs beside `run:`"
        )
    try:
        by_name = [(strategy_name(parse_strategy(name)), words or []) for name, words in value.items()]
    except InputError as error:
        raise ValueError(str(error)) from None
    if twice := [name for name, count in Counter(name for name, _ in by_name).items() if count > 1]:
        raise ValueError(f"{' and '.join(twice)} is there twice, under another name")
    return dict(by_name)


Seconds = Annotated[float, BeforeValidator(_seconds)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words), Field(strict=False)]
Texts = Annotated[dict[str, str], BeforeValidator(_texts)]
WordsByStrategy = Annotated[dict[str, Words], BeforeValidator(_by_strategy)]


class Resume(StrictModel):
    """How a command is told to go on where an earlier attempt stopped.

    Attributes:
        checkpoint: a path that begins with `{out}/`; what follows is a regular expression, whose group `step` is the
            number of the step. The checkpoint with the highest number is taken.
        add: words that are appended where there is one, with {checkpoint} and {step}.
        always: words that are appended to each attempt but the first, for a program that finds its own checkpoints.
    """

    checkpoint: str | None = None
    add: Words = ()
    always: Words = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.always) == bool(self.checkpoint):
            raise ValueError("resume: either `checkpoint` with `add` is expected, or `always`")
        if self.checkpoint is None:
            return self
        if not self.add:
            raise ValueError("resume: add: is missing: what tells the command of a checkpoint")
        if not self.checkpoint.startswith("{out}/"):
            raise ValueError(f"checkpoint: a path that begins with {{out}}/ is expected, got {self.checkpoint!r}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"checkpoint: {self.pattern!r} is no regular expression: {error}") from None
        if found := re.search(r"\{([a-z]\w*)\}", self.pattern):
            raise ValueError(f"checkpoint: {found[0]}: after {{out}}/ a regular expression is expected")
        names_in(self.add, (*PLACEHOLDERS, *RESUME_PLACEHOLDERS))
        return self

    @property
    def pattern(self) -> str:
        """The regular expression of paths of checkpoints, relative to the run's folder."""
        return (self.checkpoint or "").removeprefix("{out}/")


class Stop(StrictModel):
    """How a command is stopped.

    Attributes:
        signal: what is sent to its leader, which saves and leaves.
        grace: seconds after which all of its processes are killed.
        silent: seconds without output or metrics after which it has failed; None for no limit.
    """

    signal: Literal["TERM", "INT", "HUP", "USR1", "USR2"] = "TERM"
    grace: Seconds = 30.0
    silent: Seconds | None = None


class Data(StrictModel):
    """Data whose digest is part of a run's id.

    Attributes:
        paths: of files and folders, or patterns.
        digest: of large files, `sampled` of both ends, or `full`.
    """

    paths: Patterns = ()
    digest: Literal["sampled", "full"] = "sampled"


def _data(value: object) -> object:
    return value if isinstance(value, dict | Data) else {"paths": value}


class CommandBlock(StrictModel):
    """What stands under `run:` in a grid file; see `CommandRecipe`."""

    command: Words
    score: StatedScore
    reader: str | dict[str, Any] | None = None
    metrics: Patterns = ()
    resume: Resume | None = None
    stop: Stop = Stop()
    env: Texts = Field(default_factory=dict)
    files: dict[str, RenderedFile] = Field(default_factory=dict)
    workdir: str = ""
    code: Annotated[CodeRule, BeforeValidator(as_code_rule)] = CodeRule()
    data: Annotated[Data, BeforeValidator(_data)] = Data()
    uses: Literal["env"] | None = None
    gpus: Positive = 1
    nodes: Positive = 1
    steps: Positive | None = None
    ends_early: bool = False
    width: Positive | None = None
    factors: Literal["adamw", "sgd"] = "adamw"
    strategies: WordsByStrategy = Field(default_factory=dict)
    snapshot: bool = True
    keep: Patterns | None = None
    seeds: Literal["none"] | None = None
    trial: Words = Field((), alias="try")

    def fields(self) -> dict[str, Any]:
        """Return the fields of the recipe."""
        names = {"command": "argv", "steps": "last_step", "code": "code_rule"}
        fields = {names.get(name, name): value for name, value in self if name != "data"}
        return fields | {"data_files": self.data.paths, "reads_all_data": self.data.digest == "full"}


class CommandRecipe(OwnCodeRecipe):
    """A command that is started for each run, with its placeholders replaced.

    Attributes:
        argv: the words of the command.
        reader: what finds metrics in its files or its output; None where it writes them itself, see docs/own-code.md.
        metrics: patterns of names of further metrics that are kept.
        resume: how it is taken up again; None to start again from the beginning.
        stop: how it is stopped.
        env: environment variables.
        files: files that are written for each run, by path.
        workdir: where it runs, relative to `folder`.
        data: digest of its data, empty if none are named.
        data_files: patterns of files that belong to it, relative to `folder`.
        reads_all_data: whether the digest is of all contents of large files, not of both ends.
        strategies: words that are appended under a strategy.
        uses: `env` if it reads lr, wd and seed from the environment.
        gpus: devices of a run on each node.
        nodes: nodes of a run.
        trial: words that `ettsweep try` appends, so that a run of it is short; `try:` in a grid file.
    """

    keeps_checkpoints: ClassVar[bool] = True

    trainable: Literal["command"] = "command"
    argv: Words
    reader: str | dict[str, Any] | None = None
    metrics: Annotated[Patterns, NotInId()] = ()
    resume: Annotated[Resume | None, NotInId()] = None
    stop: Annotated[Stop, NotInId()] = Stop()
    env: Texts = Field(default_factory=dict)
    files: dict[str, RenderedFile] = Field(default_factory=dict)
    workdir: Annotated[str, AfterValidator(_normal_folder), OmitFromIdAt("")] = ""
    data: str = ""
    data_files: Annotated[Patterns, NotInId()] = ()
    reads_all_data: Annotated[bool, NotInId()] = False
    strategies: Annotated[WordsByStrategy, OmitFromIdAt({})] = Field(default_factory=dict)
    uses: Annotated[Literal["env"] | None, NotInId()] = None
    gpus: Positive = 1
    nodes: Annotated[Positive, OmitFromIdAt(1)] = 1
    trial: Annotated[Words, NotInId()] = ()

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise ValueError(f"env: {name!r} is no name of a variable")
            if SECRET.search(name):
                raise ValueError(
                    f"env: {name} would be on the page and in the folder of each run; set it in the shell, or under "
                    "`environment` of a launch profile"
                )
            if name.startswith(RESERVED_VARIABLES):
                raise ValueError(f"env: {name} is set for each run")
        return env

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.argv:
            raise ValueError("command: the words of a command are expected, got none")
        self._check_names(names_in(self._texts()))
        names_in(self.trial)
        for path, file in self.files.items():
            if not path.startswith("{out}/") or ".." in Path(path).parts:
                raise ValueError(f"files: {path}: a path that begins with {{out}}/ is expected")
            names_in(file.texts())
        return self

    def _check_names(self, names: Collection[str], under: str = "") -> None:
        """Check that runs of other lr and seeds are not alike, maybe under some strategy.

        Raises:
            ValueError: they are.
        """
        if self.uses != "env":
            for name in ("lr", "seed") if self.is_seeded else ("lr",):
                if name not in names:
                    none = "; `seeds: none` beside `run:`, that it has none" if name == "seed" else ""
                    raise ValueError(
                        f"command: {{{name}}} occurs nowhere{under}, so that runs of another {name} would be alike; "
                        f"`uses: env` says that it is read from ETTSWEEP_{name.upper()}{none}"
                    )

    def _texts(self, strategies: Collection[str] | None = None) -> Iterator[str]:
        """Yield all texts with placeholders but those for taking a run up again; of all strategies, or some."""
        yield from self.argv
        for strategy, words in self.strategies.items():
            if strategies is None or strategy in strategies:
                yield from words
        yield from self.env.values()
        for path, file in self.files.items():
            yield path
            yield from file.texts()

    @classmethod
    def from_block(
        cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path
    ) -> "CommandRecipe":
        source, data = override_block(block, overrides, location)
        stated = validate(CommandBlock, data, source)
        fields = stated.fields() | {"folder": str(folder.resolve()), "data": ""}
        recipe = validate(cls, fields, source)
        with locating(source):
            if not recipe.run_folder.is_dir():
                raise InputError(f"workdir: there is no folder {recipe.run_folder}")
            recipe.check_program()
            recipe.check_reader()
            recipe.check_files()
        return recipe

    # --- what the planner asks ---

    @property
    def recipe_key(self) -> tuple[object, ...]:
        """Hashable key of the recipe."""
        devices = self.gpus, self.nodes
        return self.argv, self.score, self.code, self.data, devices, self.last_step, tuple(self.env.items())

    def for_trial(self) -> Self:
        ends_early = self.ends_early or bool(self.trial)  # `steps` is of whole runs
        return self.model_copy(update={"argv": (*self.argv, *self.trial), "trial": (), "ends_early": ends_early})

    @property
    def labels(self) -> Labels:
        return Labels(self.program)

    @property
    def has_wd(self) -> bool:
        return self.uses == "env" or "wd" in names_in(self._texts())

    def particulars(self) -> dict[str, str]:
        stated = "none: its own lines" if self.reader is None else "stated in the grid file"
        digest = "all contents" if self.reads_all_data else "of large files both ends"
        return {
            "reader": self.reader if isinstance(self.reader, str) else stated,
            "data": f"{', '.join(self.data_files)} ({digest})" if self.data_files else "no data named",
        }

    @property
    def program(self) -> str:
        """What is trained, in a word: the script, or else the first word of the command."""
        for word in self.argv:
            if word.endswith(SCRIPT_SUFFIXES):
                return Path(word).name
        for module in self._modules():
            return module
        first = Path(self.argv[0]).name
        others = (Path(word).name for word in self.argv[1:] if not word.startswith("-") and "{" not in word)
        return next(others, first) if first.startswith(INTERPRETERS) and "-c" not in self.argv else first

    @property
    def data_kind(self) -> str:
        return ""

    def check_axes(self, lrs: Sequence[float], wds: Sequence[float], strategies: Sequence[str]) -> str:
        self._check_strategies(strategies)
        # By the words of each strategy that has some, else by what all have.
        told = all("wd" in names_in(self._texts([strategy])) for strategy in self.strategies or [""])
        if len(set(wds)) > 1 and self.uses != "env" and not told:
            raise InputError(
                "command: {wd} occurs nowhere, so that runs of different wd would be alike; leave out the range of wd, "
                "or say `uses: env`"
            )
        return ""

    def _check_strategies(self, names: Sequence[str]) -> None:
        told = self.uses == "env" or "strategy" in names_in(self._texts())
        if not told and len({self.strategies.get(name, ()) for name in names}) < len(names):
            raise InputError(
                f"strategies: {{strategy}} occurs nowhere, so that runs under {' and '.join(names)} would be alike; "
                "have it in the command, or say under `run:` what is appended to it: `strategies: {mup: --use-mup}`"
            )
        for name in names:
            try:
                self._check_names(names_in(self._texts([name])), f" under {name}")
            except ValueError as error:
                raise InputError(str(error)) from None

    @property
    def job_nodes(self) -> int | None:
        return self.nodes

    def check_resources(self, devices: int, memory_bytes: int, owner: str) -> None:
        if devices != (needed := self.gpus * self.nodes):
            product = "" if self.nodes == 1 else f" ({self.nodes} nodes x {self.gpus})"
            raise InputError(
                f"gpus: a run of this sweep takes {needed}{product}, and the launch profile gives it {devices}: "
                f"--launch-set devices_per_run={needed}"
            )

    def check_results(self, results: Path) -> None:
        place = str(results.resolve())
        if "out" in names_in(self._texts()) and (found := re.search(r"[\s=]", place)):
            raise InputError(
                f"--results: {{out}} would lie below {place!r}, and a path with {found[0]!r} breaks what splits words "
                "and what takes key=value: choose another folder"
            )

    # --- its code, its data, its program ---

    @property
    def run_folder(self) -> Path:
        """Where the command runs."""
        return Path(self.folder, self.workdir)

    def check_program(self) -> None:
        """Check that the first word of the command is a program here.

        Raises:
            InputError: it is none.
        """
        first = self.argv[0]
        found = shutil.which(first) if "/" not in first else shutil.which(str(self.run_folder / first))
        if not found and "{" not in first:
            script = self.run_folder / first
            if script.is_file():
                raise InputError(f"command: {first} is not executable: chmod +x it, or write [bash, {first}, ...]")
            raise InputError(f"command: there is no program {first} here (PATH is {os.environ.get('PATH', '')})")

    def check_reader(self) -> None:
        """Check that there is such a reader of metrics, and that it may see the score.

        Raises:
            InputError: there is none, or it cannot.
        """
        if self.reader is None:
            return
        from ettsweep.readers.registry import reader_of

        names = reader_of(self.reader, Path(self.folder)).group_names()
        if names is not None and self.score.name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise InputError(f"score: {self.score.name} is no metric of the reader; its groups are {known}")

    def check_files(self) -> None:
        """Check that scripts which the command names are there, and that files can be written for a run.

        Raises:
            InputError: one is not, or cannot.
        """
        for word in self.argv:
            name = word.rpartition("=")[2]
            if word.endswith((".py", ".sh")) and "{" not in word and not (self.run_folder / name).is_file():
                raise InputError(f"command: there is no file {name} in {self.run_folder}")
            self._check_inside("command", name, self.run_folder)
        for name in self.data_files:
            self._check_inside("data", name, Path(self.folder))
        values: dict[str, Value] = {"lr": 1.0, "wd": 1.0, "seed": 0, "out": "out", "id": "0", "strategy": "standard"}
        for file in self.files.values():
            file.content(Path(self.folder), values | {"devices": self.gpus * self.nodes})

    def code_folders(self) -> tuple[Path, ...]:
        above = [word for word in self._named() if ".." in word]
        rule = self.code_rule
        patterns = [*(file.source for file in self.files.values()), *rule.add, *rule.only, *self._reader_file()]
        return (
            Path(os.path.normpath(self.run_folder)),
            *folders_of(self.run_folder, above),
            *folders_of(Path(self.folder), patterns),
        )

    def _named(self) -> list[str]:
        """Return the files that the command names, as it does: `FILE`, `--config=FILE`, or in a text for a shell."""
        words = [word for words in (self.argv, *self.strategies.values()) for word in words]
        names = dict.fromkeys(name for word in words for name in re.split(r"[\s'\"=:;,|&()<>]+", word))
        return [name for name in names if name and os.path.isfile(self.run_folder / name)]  # noqa: PTH113

    def named_files(self) -> list[Path]:
        sources = [file.source for file in self.files.values()]
        return [
            *(self.run_folder / name for name in self._named()),
            *(Path(self.folder, name) for name in (*sources, *self._reader_file())),
        ]

    def _check_inside(self, key: str, name: str, folder: Path) -> None:
        """Check that a name relative to a folder does not lead out of what runs get a copy of.

        Raises:
            InputError: it does.
        """
        path = Path(os.path.normpath(folder / name))
        if not (self.snapshot and ".." in Path(name).parts and path.exists()):
            return
        if not path.is_relative_to(project_root(Path(self.folder), self.code_folders())):
            raise InputError(
                f"{key}: {name} leads out of the project, of which runs train in a copy: write an absolute path, "
                f"such as {path}, or `snapshot: false`"
            )

    def _reader_file(self) -> list[str]:
        """Return the name of the file of its reader, if it has one of its own."""
        return [self.reader] if isinstance(self.reader, str) and self.reader.endswith((".yaml", ".yml")) else []

    def _modules(self) -> list[str]:
        """Return the modules that the command runs as `-m NAME`."""
        return [word for flag, word in zip(self.argv, self.argv[1:], strict=False) if flag == "-m"]

    def check_code(self, code: ProjectCode) -> None:
        if not self.snapshot:
            return
        for name in self._named():
            if os.path.isabs(name) and os.path.relpath(name, code.folder) in code.files:  # noqa: PTH117
                raise InputError(
                    f"command: {name} lies in the project, of which runs train in a copy: write "
                    f"{os.path.relpath(name, self.run_folder)}, or `snapshot: false`"
                )

    def data_fields(self) -> dict[str, Any]:
        return {"data": self._data_digest()}

    def data_paths(self) -> list[Path]:
        folder = Path(self.folder)
        return [path for name in self.data_files for path in named_data(folder, name)]

    def _data_digest(self) -> str:
        return data_digest(self.data_files, Path(self.folder), whole=self.reads_all_data) if self.data_files else ""

    def check_data(self, data: str | None, *, count: bool = False) -> None:
        self.check_program()

    def data_change(self) -> str:
        try:
            data = self._data_digest() if self.code else ""
        except DataMissingError as error:
            return str(error)
        if data == self.data:
            return ""
        names = ", ".join(self.data_files)
        return f"the data ({names}) have changed since the run was requested (digest {self.data}, now {data})"

    # --- training ---

    @property
    def kept_metrics(self) -> tuple[str, ...]:
        """Patterns of names of the metrics that go into metrics.jsonl."""
        return self.score.name, *TRAINING_LOSSES, *self.metrics

    def train(self, run: RunContext) -> None:
        resolve_name("ettsweep.worker.command.training:train_command")(self, run)  # workers alone need it
