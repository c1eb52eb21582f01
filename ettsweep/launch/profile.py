"""Launch profiles: choose, read, override and check them."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ettsweep.config import HIDDEN_VALUE, NAME, hide_secrets, options_by_key, read_yaml, set_nested, split_override
from ettsweep.errors import InputError, unknown_name
from ettsweep.files import expand_home
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.launch.trainer_settings import TrainerSettings
from ettsweep.ownership import check_folder
from ettsweep.schema import Source, locating, validate
from ettsweep.shipped_files import describe_choice, shipped
from ettsweep.study.sweep import LaunchSettings, Sweep
from ettsweep.units import gib_of, seconds_of

AnyProfile = LocalProfile | SlurmProfile
PROFILES: dict[str, type[LocalProfile] | type[SlurmProfile]] = {"local": LocalProfile, "slurm": SlurmProfile}


def choose_launch(
    profile: str | None, overrides: Sequence[str], sweeps: Sequence[Sweep], *, is_new: bool = False
) -> LaunchSettings:
    """Return where runs train: by options, else as the last runs of their sweeps.

    Args:
        profile: a name or a file, as typed.
        overrides: `key=value` as typed, for its fields or those of the sweeps' profile.
        sweeps: of the runs or, for a new sweep, all others.
        is_new: whether they are others, which may differ.

    Raises:
        InputError: the sweeps were launched differently, and the user must choose.
    """
    if profile is not None:
        path = profile_file(profile)
        profile = str(path.resolve()) if path and path.is_file() else profile

    def changed(before: LaunchSettings) -> LaunchSettings:
        # Overrides of another profile do not apply to this one.
        base = before if profile is None else LaunchSettings(profile=profile)
        last_by_key = {text.partition("=")[0]: text for text in (*base.overrides, *overrides)}  # the last of a key wins
        return LaunchSettings(profile=base.profile, overrides=tuple(last_by_key.values()))

    names = dict[LaunchSettings, str]()
    for sweep in sweeps:
        names.setdefault(changed(sweep.launch), sweep.name)
    if len(names) == 1:
        return next(iter(names))
    if names and not is_new:
        choices = [(name, "with", each.profile, *each.masked.overrides) for each, name in names.items()]
        listing = "; ".join(map(" ".join, choices))
        raise InputError(
            f"these sweeps were launched differently ({listing}); choose with --launch, or narrow them with --sweep"
        )
    return changed(LaunchSettings())


def with_more(launch: LaunchSettings, more_memory: str | None, more_time: str | None) -> LaunchSettings:
    """Return where runs train, with more memory or time if texts state an amount.

    Raises:
        InputError: a text is not an amount, or is not above the profile's, or runs train on this machine.
    """
    profile, overrides, problems = load_profile(launch.profile, launch.overrides), [], []
    for option, text, field, read in (
        ("--more-memory", more_memory, "mem_gb", gib_of),
        ("--more-time", more_time, "time_min", lambda text: math.ceil(seconds_of(text) / 60)),
    ):
        if text is None:
            continue
        if not hasattr(profile, field):
            raise InputError(f"{option} {text}: these runs train on this machine; only SLURM jobs have a limit")
        try:
            amount = read(text)
        except ValueError as error:
            problems.append(f"{option}: {error}")
            continue
        if (had := getattr(profile, field)) is not None and amount <= had:
            problems.append(f"{option} {text}: must be above {field}: {had:g} of the launch profile")
        overrides.append(f"{field}={amount:g}")
    if problems:
        raise InputError.of(problems)
    return launch.model_copy(update={"overrides": (*launch.overrides, *overrides)})


def load_profile(name: str, overrides: Sequence[str] = (), *, is_executed: bool = False) -> AnyProfile:
    """Read a profile from a file, or by name from ./launch and then from the shipped ones.

    An override is `key=value` for any field; `environment.NAME=value`, `sbatch.option=value` and `trainer.key=value`
    set one entry.

    Args:
        name: a file, or a name.
        overrides: changes to it.
        is_executed: whether its `setup` will be executed, and others must not be able to change it.

    Raises:
        InputError: no such profile, unknown keys or invalid values; or somebody else may change it.
    """
    path = find_profile(name)
    if is_executed and path.parent != shipped("launch"):
        check_folder(path)
    data = read_yaml(path)
    for override in overrides:
        _apply_override(data, override)
    source = Source(str(path), options_by_key(overrides, "--launch-set"))
    kind = data.get("kind", "local")
    # Without `kind` the profile counts as local, and each SLURM field would be an unknown key.
    slurm_only = sorted(set(data) & (set(SlurmProfile.model_fields) - set(LocalProfile.model_fields)))
    if "kind" not in data and slurm_only:
        raise InputError(f"{source.file}: kind: missing; add `kind: slurm`, which has {', '.join(slurm_only)}")
    if not isinstance(kind, str) or kind not in PROFILES:
        raise InputError(f"{source.of(('kind',))}: kind: {unknown_name('kind', str(kind), PROFILES)}")
    for other, schema in PROFILES.items():
        if misplaced := sorted(data.keys() & schema.model_fields.keys() - PROFILES[kind].model_fields.keys()):
            raise InputError.of(
                f"{source.of((key,), is_unknown=True)}: {key}: unknown key of kind {kind}; set `kind: {other}` for it"
                for key in misplaced
            )
    if misplaced := sorted(data.keys() & TrainerSettings.model_fields.keys()):
        raise InputError.of(
            f"{source.of((key,), is_unknown=True)}: {key}: belongs to the block trainer; write trainer.{key}"
            for key in misplaced
        )
    profile = validate(PROFILES[kind], data, source)
    with locating(source):
        profile.check_counts()
    return profile


def read_profile(kind: str, data: dict[str, Any], source: str) -> AnyProfile:
    """Return the profile that a submission holds.

    Raises:
        InputError: it is invalid.
    """
    return validate(PROFILES[kind], data, source)


def _apply_override(data: dict[str, Any], override: str) -> None:
    # Sweeps mask stored values, and a mask must not become a value.
    if override.startswith("environment") and override.endswith(f"={HIDDEN_VALUE}"):
        raise InputError(
            f"--launch-set {override}: sweeps do not store this value, which may be a secret; pass it again, or a "
            "profile with it by --launch"
        )
    key, value = split_override(override, "--launch-set", "slots=4", rf"{NAME}(\..+)?")
    first, _, subkey = key.partition(".")
    if not subkey:
        data[first] = value
        return
    inner = data.setdefault(first, {})
    if not isinstance(inner, dict):
        raise InputError(f"--launch-set {hide_secrets(override)}: {first} has no parts; write {first}=value")
    if first == "trainer":
        set_nested(inner, subkey, value)
    else:  # names with dots stay whole
        inner[subkey] = value


def profile_file(name: str) -> Path | None:
    """Return the path of a profile that is given as a file; None if it is given by name."""
    return Path(expand_home(name)) if name.endswith((".yaml", ".yml")) or os.sep in name else None


PROFILES_HERE = Path("launch")
"""Folder of a project's own profiles."""


def find_profile(name: str) -> Path:
    """Return the path of a profile, given as a file or by name.

    Raises:
        InputError: no such profile; similar names are suggested.
    """
    if path := profile_file(name):
        if not path.is_file():
            raise InputError(f"{path}: no such launch profile")
        return path
    known = set[str]()
    for folder in (PROFILES_HERE, shipped("launch")):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
        known.update(path.stem for path in folder.glob("*.yaml"))
    raise unknown_name("launch profile", name, known)


def profile_note(name: str) -> str:
    """Return a line on the launch profile; empty for the shipped one of this machine."""
    path, shipped_path = find_profile(name), shipped("launch") / f"{name}.yaml"
    note = describe_choice("launch profile", path, shipped_path if shipped_path.is_file() else None)
    # The default, which says nothing new.
    return "" if name == "local" and note.endswith("ships") else note
