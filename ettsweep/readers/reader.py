"""The schema of a reader: files of a trainer, their form, and their metrics."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ettsweep.schema import ListOfOne, StrictModel

Kind = Literal["csv", "jsonl", "json", "regex", "tensorboard"]

OUTPUT = "output"
"""In `files`: the command's standard output and error."""

COUNTED = "counted"
"""In `step`: the number of the row or of the matching line, from 1."""

STEP_NAMES = ("step", "_step", "global_step", "iteration", "iter", "num_updates", "epoch")
"""Names under which trainers write the step, the finest first."""

DEFAULT_FILES = {
    "csv": "**/*.csv",
    "jsonl": "**/*.jsonl",
    "json": "**/*.json",
    "regex": OUTPUT,
    "tensorboard": "**/events.out.tfevents.*",
}


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_compiles)]
Names = Annotated[tuple[str, ...], ListOfOne, Field(strict=False)]


class Reader(StrictModel):
    r"""How to find metrics in the files of a trainer.

    Attributes:
        name: of the reader.
        about: description for people.
        kind: form of the files.
        files: globs relative to the run's folder, where `**/` is any number of folders; or `output`.
        which: of several files: `all`, in the order of their names, version_2 before version_10; the `newest`, by the
            `global_step` at its beginning, or else its time; or `one`, which makes several an error.
        step: columns, keys (`.` between nested ones) or tags of the step; the first present one counts. `counted`
            numbers the rows. A pattern has a group `step` instead.
        step_in_path: pattern whose first group is the step, in the path of the file.
        rows: of kind json, the key of a list of objects; empty if the document is one, or a list.
        after: of kind jsonl, a pattern before the object; lines without it are skipped.
        patterns: of kind regex, for each line. Named groups are metrics, or `name` and `value`, several times a line.
            `step` is the step; without it, the last step counts, else the number of lines with the same metrics.
        metrics: globs of names of metrics.
        skip: globs of other names.
        rename: new names, by old.
        split: separates training and validation with the same names: a column or key whose text becomes a prefix of the
            names (`val_loss`), or a mapping of prefixes to patterns of path or line.
        repository: of the trainer.
        commit: of the trainer with this format.
        beware: a warning for people who compare these numbers.
    """

    name: str = ""
    about: str = ""
    kind: Kind
    files: Names = ()
    which: Literal["all", "newest", "one"] = "all"
    step: Names = STEP_NAMES
    step_in_path: Pattern | None = None
    rows: str = ""
    after: Pattern | None = None
    patterns: Annotated[tuple[Pattern, ...], ListOfOne, Field(strict=False)] = ()
    metrics: Names = ("*",)
    skip: Names = ()
    rename: dict[str, str] = Field(default_factory=dict)
    split: str | dict[str, Pattern] | None = None
    repository: str = ""
    commit: str = ""
    beware: str = ""

    @model_validator(mode="before")
    @classmethod
    def _default_files(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("files") and data.get("kind") in DEFAULT_FILES:
            return data | {"files": DEFAULT_FILES[data["kind"]]}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [*self._misplaced(), *self._bad_files(), *self._bad_patterns()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def group_names(self) -> set[str] | None:
        """Return the names of its metrics if its patterns have them all; None if they depend on files."""
        groups = {name for pattern in self.patterns for name in re.compile(pattern).groupindex}
        if self.kind != "regex" or self.split or {"name", "value"} & groups:
            return None
        return {self.rename.get(name, name) for name in groups - {"step"}}

    def _misplaced(self) -> list[str]:
        """Return the problems of keys that this kind does not use."""
        uses = {"rows": ("json",), "after": ("jsonl",), "patterns": ("regex",)}
        wrong = [
            f"{key} is for kind {kinds[0]}"
            for key, kinds in uses.items()
            if getattr(self, key) and self.kind not in kinds
        ]
        if isinstance(self.split, str) and self.kind in ("regex", "tensorboard"):
            wrong.append(f"split of kind {self.kind} is a mapping, such as {{val: validate}}")
        if self.step_in_path and re.compile(self.step_in_path).groups != 1:
            wrong.append("step_in_path needs one group, such as metrics_step(\\d+)")
        return wrong

    def _bad_files(self) -> list[str]:
        if OUTPUT in self.files and self.kind in ("json", "tensorboard"):
            return [f"files: the output is not a file of kind {self.kind}"]
        wrong = [glob for glob in self.files if glob.startswith("/") or ".." in glob.split("/")]
        return [f"files: {glob!r} leads outside of the run's folder" for glob in wrong]

    def _bad_patterns(self) -> list[str]:
        if self.kind != "regex":
            return []
        if not self.patterns:
            return ["patterns is required"]
        groups = [set(re.compile(pattern).groupindex) for pattern in self.patterns]
        wrong = [
            f"patterns: {pattern!r} has {'only one of name and value' if names else 'no named group'}; write a metric "
            "as (?P<val_loss>...), or as (?P<name>...) and (?P<value>...), and the step as (?P<step>...)"
            for pattern, names in zip(self.patterns, groups, strict=True)
            if not names or len(names & {"name", "value"}) == 1
        ]
        if not wrong and set().union(*groups) == {"step"}:
            wrong.append("patterns: has only a step; write a metric as (?P<val_loss>...)")
        return wrong
