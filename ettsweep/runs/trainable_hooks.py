"""What a trainable may say beyond `runs/trainable.py`, by who asks; the defaults serve one that needs none of it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ettsweep.errors import InputError
from ettsweep.schema import Key, Source, StrictModel, validate

if TYPE_CHECKING:
    from ettsweep.project_code import CodeRule, ProjectCode


class GridFileHooks(StrictModel):
    """How grid files and options of commands name and describe it."""

    @classmethod
    def from_block(cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path) -> Self:
        """Return the recipe that a grid file describes.

        Args:
            block: what stands under `run:`.
            overrides: `key=value` for dotted keys of it, from the command line.
            location: the file and the key of the block, for messages.
            folder: of the file.

        Raises:
            InputError: all problems of the block.
        """
        source, data = override_block(block, overrides, location)
        return validate(cls, data, source)

    @classmethod
    def block_problems(cls, block: dict[str, Any], overrides: Sequence[str], location: str) -> list[str]:
        """Return the problems of a block, one a line, in a grid file that has other problems; see `from_block`."""
        try:
            cls.from_block(block, overrides, location, Path())
        except InputError as error:
            return str(error).splitlines()
        return []

    block_keys: ClassVar[Sequence[Key]] = ()
    """Keys that a block may have beside its fields, to suggest for misspelt ones."""

    @classmethod
    def check_name(cls, field: str, name: str) -> None:
        """Check the name of a model or task that stands at the top of a grid file.

        Raises:
            InputError: there is none of that name.
        """


class ViewHooks(StrictModel):
    """Units and names of what tables and figures show of its runs."""

    @property
    def has_wd(self) -> bool:
        """Whether its runs are given a wd; else nobody is shown one."""
        return True

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch, for the axis of curves; None for an axis of steps."""
        return None

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens that a step is trained on; None unless samples are text, and where padding differs between them."""
        return None

    @property
    def momentum_gain(self) -> float:
        """What steps of one direction, decay among them, add up to over lr: 1 unless momentum adds to them."""
        return 1.0

    @property
    def samples_name(self) -> str:
        """Plural noun of what a step is trained on, for speeds."""
        return "samples"

    def particulars(self) -> Mapping[str, str]:
        """Return what tables say of how it is trained beside its numbers, by their labels."""
        return {}


class LaunchHooks(StrictModel):
    """What is checked before runs are submitted."""

    @property
    def data_kind(self) -> str:
        """Name of the data whose location `--data` or a variable gives; empty if it reads none."""
        return ""

    @property
    def no_data_reason(self) -> str:
        """Why `--data` is refused where no data are needed."""
        return "its runs read no data that --data could locate"

    def check_data(self, data: str | None, *, count: bool = False) -> None:
        """Check that the data are where workers look for them; with `count`, quickly that they are all there.

        Raises:
            DataMissingError: they are missing or do not fit.
        """

    def bound_to(self, data: str | None) -> Self:
        """Return the recipe bound to what it is trained with here, by digests of data or code that enter the id.

        Raises:
            DataMissingError: it is missing.
        """
        return self

    def check_axes(self, lrs: Sequence[float], wds: Sequence[float], strategies: Sequence[str]) -> str:
        """Check that training depends on lr, and on wd and strategy where they have several values.

        Returns:
            a note on effects that people rarely want of these lr; empty for none.

        Raises:
            InputError: it does not.
        """
        return ""

    def check_resources(self, devices: int, memory_bytes: int, owner: str) -> None:
        """Check that a run fits on this many devices with this memory in all, which `owner` names.

        Raises:
            InputError: it does not.
        """

    def check_results(self, results: Path) -> None:
        """Check that runs can be trained in a results folder.

        Raises:
            InputError: they cannot.
        """

    @property
    def job_nodes(self) -> int | None:
        """Nodes that a run takes; None if it is all the same."""
        return None

    def for_trial(self) -> Self:
        """Return the recipe with shorter runs, as far as it states how, for a trial of what trains them."""
        return self


@dataclass(frozen=True)
class OwnCode:
    """Code of a user that a run trains with.

    Attributes:
        digest: of the code, as it enters the id.
        copy: digest of the copy of the project that the run trains in, which counts as `digest`.
        folder: of the grid file, in the project.
        rule: which files of the project are the code.
        is_copied: whether the run trains in the copy; else in the project itself.
    """

    digest: str
    copy: str
    folder: Path
    rule: "CodeRule"
    is_copied: bool = True


class OwnCodeHooks(StrictModel):
    """What a recipe says of a user's own code, which may change."""

    def own_code(self) -> OwnCode | None:
        """Return the user's code that runs train with; None if all comes with installed packages."""
        return None

    def project_code(self) -> "ProjectCode | None":
        """Return the code of the project as it is now; None without own code.

        Raises:
            DataMissingError: a file is missing.
            InputError: its files cannot be listed.
        """
        return None

    def with_code(self, digest: str, copy: str) -> Self:
        """Return the recipe with code of a digest, which trains in a copy of another one."""
        return self

    def moved_to(self, folder: Path) -> Self:
        """Return the recipe with the folder of its grid file moved."""
        return self

    @property
    def kept_outputs(self) -> Sequence[str] | None:
        """Patterns of the files in `out` that are kept where space is made after a run has ended; None for all."""
        return None

    def data_change(self) -> str:
        """Return how its data have changed since the run was requested; empty if they have not."""
        return ""


def override_block(block: dict[str, Any], overrides: Sequence[str], location: str) -> tuple[Source, dict[str, Any]]:
    """Return a block with `key=value` from the command line applied, and where its values come from, for messages."""
    from ettsweep.config import options_by_key, set_nested, split_override  # YAML: only grid files need it

    data = deepcopy(block)
    for override in overrides:
        set_nested(data, *split_override(override))
    return Source(location, options_by_key(overrides)), data
