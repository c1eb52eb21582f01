"""Launch profiles: on which machines, with how many workers and how runs train. They never change a run's results."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, model_validator

from ettsweep.config import HIDDEN_VALUE, NAME, hide_secrets, options_by_key, read_yaml, set_nested, split_override
from ettsweep.console import format_count
from ettsweep.errors import InputError, unknown_name
from ettsweep.files import expand_home
from ettsweep.launch.gpus import gpu_bytes, visible_gpus
from ettsweep.launch.job_environment import Variables
from ettsweep.launch.profile_fields import Devices, SbatchValue, SingleLine
from ettsweep.processes import GIB, cores, memory_bytes
from ettsweep.runs.trainable import Settings
from ettsweep.runs.trainables import ValidatedSettings, class_of, trainer_keys
from ettsweep.schema import (
    Count,
    Key,
    NonNegative,
    Positive,
    PositiveFloat,
    Source,
    StrictModel,
    is_whole,
    keys_of,
    locating,
    validate,
)
from ettsweep.shipped_files import describe_choice, shipped


@dataclass(frozen=True)
class Slot:
    """A share of a machine for one worker: a GPU, a fraction of one, or some CPU threads.

    Attributes:
        name: unique on its host, such as gpu-<uuid> or cpu-0; also the name of its lock file.
        gpu: UUID or index, as for CUDA_VISIBLE_DEVICES; None on the CPU.
        threads: CPU threads of the worker.
        sharers: number of workers that share the GPU.
        others: the further slots of a run that trains on several devices.
    """

    name: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    threads: int
    sharers: int = 1
    others: "tuple[Slot, ...]" = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Slot":
        """Build a slot from what `dataclasses.asdict` returned for it."""
        return cls(**data | {"others": tuple(cls.from_json(other) for other in data.get("others", ()))})


AnySettings = TypeVar("AnySettings", bound=Settings)


class Profile(StrictModel):
    """Fields that local and SLURM profiles share.

    Attributes:
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        heartbeat_s: seconds between heartbeats, which tell observers that can see neither the process nor the
            scheduler that a run is alive. On a shared file system without close-to-open consistency, keep it above a
            third of the time for which old contents may be read.
        snapshot: train from a copy of the code made at submission.
        devices_per_run: GPUs, or CPU slots, that train one run together.
        trainer: settings of the trainable that trains the runs, the built-in one if the block names no other; None
            for its defaults.
    """

    checkpoint_every_s: NonNegative = 300.0
    checkpoint_every_steps: Positive | None = None
    heartbeat_s: PositiveFloat = 30.0
    snapshot: bool = False
    devices_per_run: Positive = 1
    trainer: Annotated[SerializeAsAny[Settings] | None, ValidatedSettings] = None

    def settings(self, schema: type[AnySettings]) -> AnySettings:
        """Return the settings of the trainable that has this schema: its defaults if the profile has none for it."""
        return self.trainer if type(self.trainer) is schema else schema()

    def sets_variable(self, variable: str) -> bool:
        """`True` if the profile itself sets an environment variable."""
        return False

    def memory_limit(self) -> tuple[int, str]:
        """Return the memory in bytes that a run can have at most, and a label of what provides it."""
        raise NotImplementedError


class LocalProfile(Profile):
    """Workers on this machine.

    Attributes:
        devices: `auto` uses the GPUs, or the CPU if there are none; `cpu`; or a list of GPU numbers.
        slots: number of workers; `auto` is one per core on the CPU, and `workers_per_device` per GPU.
        workers_per_device: workers that share a GPU and split its memory.
        threads: CPU threads per worker; `auto` splits the cores among the slots. A resumed run is bit for bit the
            same only with as many threads as before.
    """

    kind: Literal["local"] = "local"
    devices: Devices = "auto"
    slots: Count = "auto"
    workers_per_device: Positive = 1
    threads: Count = "auto"

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if isinstance(self.devices, list) and (repeated := [n for n in self.devices if self.devices.count(n) > 1]):
            raise ValueError(
                f"devices: GPU {repeated[0]} is named twice; workers_per_device=2 has two workers share each GPU"
            )
        if self.workers_per_device > 1 and self.slots != "auto":
            raise ValueError("slots and workers_per_device both set the number of workers: give only one of them")
        if self.devices_per_run > 1 and self.workers_per_device > 1:
            raise ValueError("workers_per_device: must be 1 with devices_per_run > 1: each device has its own worker")
        return self

    def resolve_slots(self) -> list[Slot]:
        """Return this machine's slots, grouped so that each lists the others that train its runs with it.

        Raises:
            InputError: fewer devices than `devices_per_run`, or a GPU of `devices` does not exist.
        """
        # Left-over slots that do not fill a group stay unused.
        singles, devices_per_run = self._single_device_slots(), self.devices_per_run
        if len(singles) < devices_per_run:
            hint = "" if self.slots == "auto" else f" (slots={self.slots}; {devices_per_run} are needed)"
            hint = hint if singles[0].device == "cuda" else f" (on the CPU: slots={devices_per_run})"
            raise InputError(f"devices_per_run: {devices_per_run} requested, but only {len(singles)} available{hint}")
        groups = [
            singles[first : first + devices_per_run]
            for first in range(0, len(singles) - devices_per_run + 1, devices_per_run)
        ]
        return [replace(first, others=tuple(others)) for first, *others in groups]

    def memory_limit(self) -> tuple[int, str]:
        """Return the memory in bytes that a run can have on this machine, and a label of what provides it."""
        k = self.devices_per_run
        # A generous bound: the largest GPU, even if `devices` names smaller ones.
        if self.devices != "cpu" and visible_gpus() and (largest := gpu_bytes()):
            return k * largest, f"{format_count(k, 'GPU')} of this machine" if k > 1 else "a GPU of this machine"
        return memory_bytes(), "this machine"

    def check_counts(self) -> None:
        """Check that workers, their threads and their processes are not absurdly many for this machine.

        Raises:
            InputError: a count is above its limit.
        """
        core_count, memory = cores(), memory_bytes()
        counts = {name: getattr(self, name) for name in ("slots", "threads", "workers_per_device")}
        counts |= {f"trainer.{name}": getattr(self.trainer, name) for name in (self.trainer or Settings()).per_core}
        limits = dict.fromkeys(counts, core_count * MAX_PER_CORE)
        # Each worker imports torch, so memory limits their number before the cores do.
        limits["slots"] = min(limits["slots"], max(core_count, memory // WORKER_BYTES))
        exceeded = {name: limit for name, limit in limits.items() if is_whole(counts[name], limit + 1)}
        if exceeded:
            machine = f"this machine has {format_count(core_count, 'core')} and {memory / GIB:.0f} GiB"
            raise InputError.of(
                f"{name}: {counts[name]} are too many: {machine}; {limit} at most" for name, limit in exceeded.items()
            )

    def _single_device_slots(self) -> list[Slot]:
        """Return one slot per worker, before they are grouped by `devices_per_run`."""
        core_count = cores()
        gpus = [] if self.devices == "cpu" else visible_gpus()
        if isinstance(self.devices, list):
            if missing := [index for index in self.devices if index >= len(gpus)]:
                raise InputError(
                    f"devices: there is no GPU {missing[0]}; {len(gpus)} found here (`devices: cpu` uses none)"
                )
            gpus = [gpus[index] for index in self.devices]
        workers_per_gpu = self.workers_per_device
        worker_count = (len(gpus) * workers_per_gpu or core_count) if self.slots == "auto" else self.slots
        threads = max(1, core_count // worker_count) if self.threads == "auto" else self.threads
        if not gpus:
            if workers_per_gpu > 1:
                raise InputError(
                    f"workers_per_device: there is no GPU here; slots={workers_per_gpu * core_count} is for the CPU"
                )
            return [Slot(f"cpu-{k}", "cpu", None, threads) for k in range(worker_count)]
        # Ranks of one run on the same GPU would fight for its memory, and NCCL refuses them.
        if self.devices_per_run > 1 and worker_count > len(gpus):
            shared = f"{worker_count} workers cannot share {format_count(len(gpus), 'GPU')}"
            raise InputError(f"slots: {shared} where devices_per_run is {self.devices_per_run}")
        return [_gpu_slot(gpus, k, worker_count, threads) for k in range(worker_count)]


def _gpu_slot(gpus: Sequence[str], worker: int, worker_count: int, threads: int) -> Slot:
    """Return the slot of one of `worker_count` workers, which are dealt to the GPUs in turn."""
    gpu, rank_on_gpu = gpus[worker % len(gpus)], worker // len(gpus)
    sharers = len(range(worker % len(gpus), worker_count, len(gpus)))
    # The name becomes a file name; UUIDs of MIG devices can contain slashes.
    name = f"gpu-{gpu.replace('/', '_')}" + (f".{rank_on_gpu + 1}" if rank_on_gpu else "")
    return Slot(name, "cuda", gpu, threads, sharers)


MAX_PER_CORE = 64
"""Most workers or threads per core; more can only be a typing error."""

WORKER_BYTES = 2**28
"""Lower bound on the memory of a worker: what importing torch takes."""


FIELD_BY_OPTION = {
    **{option: option.replace("-", "_") for option in ("partition", "account", "qos", "constraint", "nodes")},
    **{"time": "time_min", "mem": "mem_gb", "cpus-per-task": "cpus", "gpus-per-node": "gpus", "gpus": "gpus"},
    **{"ntasks-per-node": "gpus", "ntasks": "gpus"},
}
"""The profile's field for each sbatch option that has one; `sbatch:` must not set these."""

RESERVED_OPTIONS = {
    *("array", "job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "wrap", "test-only"),
    *("wait", "parsable", "quiet", "clusters", "help", "usage", "version"),
}
"""sbatch options that ettsweep relies on; `sbatch:` must not set these."""


class SlurmProfile(Profile):
    """Jobs on a SLURM cluster: a submission is one array, and each array task is a job.

    Attributes:
        partition, account, qos, constraint: as for sbatch; the site's default if not given.
        time_min: time limit of a job in minutes. A longer run continues in further jobs.
        nodes: nodes of a job.
        gpus: GPUs of a job on each node, with one worker each. Each worker trains one run at a time, or all of them
            train one run together (see devices_per_run). 0 trains on the CPU, with one worker per node.
        cpus: CPUs of a worker.
        mem_gb: memory of a job on each node, in GiB; the site's default if not given.
        max_parallel: jobs of one array that run at the same time; only limited by the site if not given.
        runs_per_job: runs of a job, trained one after another (or in parallel on its GPUs).
        setup: shell commands before the workers start, such as `module load cuda`.
        environment: environment variables of the job; their values are stored in one file that only its owner can read.
        sbatch: further options of sbatch by their long names; true for a flag.
        python: command that starts Python on a node, such as `singularity exec image.sif python`; the submitter's
            Python if not given.
        warn_s: seconds before the time limit at which a job is signalled to save and to continue in the next one; SLURM
            may send the signal up to a minute earlier.
    """

    kind: Literal["slurm"]
    partition: SingleLine | None = None
    account: SingleLine | None = None
    qos: SingleLine | None = None
    constraint: SingleLine | None = None
    time_min: Positive = 240
    nodes: Positive = 1
    gpus: Annotated[int, Field(ge=0)] = 1
    cpus: Positive = 4
    mem_gb: PositiveFloat | None = None
    max_parallel: Positive | None = None
    runs_per_job: Positive = 1
    setup: Annotated[tuple[SingleLine, ...], Field(strict=False)] = ()
    environment: Variables = Field(default_factory=dict)
    sbatch: dict[str, SbatchValue] = Field(default_factory=dict)
    python: SingleLine | None = None
    warn_s: Positive = 120

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        # srun starts all workers of a job alike, so they form either one group or none.
        if self.devices_per_run not in (1, self.nodes * self.workers):
            raise ValueError(
                f"devices_per_run: a job has {self.nodes * self.workers} workers (nodes x gpus), which train a run "
                f"each (1) or one run together ({self.nodes * self.workers}), got {self.devices_per_run}"
            )
        early_s = 60 if self.time_min > 1 else 0  # SLURM may signal this much earlier
        if self.warn_s + early_s >= 60 * self.time_min:
            raise ValueError(
                f"warn_s: {self.warn_s} s before the end of a job of {self.time_min} min may be before its start"
            )
        for command in self.setup:
            # sbatch reads its options only above the first command, and would ignore this one.
            if command.startswith("#SBATCH"):
                raise ValueError(f"setup: {command!r} is an option of sbatch: it belongs under sbatch")
        for option in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
                raise ValueError(f"sbatch: {option!r} is not a long option of sbatch, such as mail-type")
            if fields := [
                field for sbatch_option, field in FIELD_BY_OPTION.items() if sbatch_option.startswith(option)
            ]:
                raise ValueError(f"sbatch: {option} is set by the profile's field {fields[0]}")
            # sbatch accepts any unique prefix of an option.
            if any(sbatch_option.startswith(option) for sbatch_option in RESERVED_OPTIONS):
                raise ValueError(f"sbatch: {option} is set by ettsweep itself")
        return self

    def sets_variable(self, variable: str) -> bool:
        """`True` if the profile itself sets an environment variable, for example to a copy of the data on the node."""
        return variable in self.environment or any(variable in command for command in self.setup)

    def memory_limit(self) -> tuple[int, str]:
        """Return the memory in bytes that a run can have in a job, and a label of what provides it."""
        if self.gpus:
            return self.devices_per_run * LARGEST_GPU_BYTES, format_count(self.devices_per_run, "GPU")
        node_bytes = LARGEST_NODE_BYTES if self.mem_gb is None else int(self.mem_gb * GIB)
        return self.nodes * node_bytes, format_count(self.nodes, "node") + (
            "" if self.mem_gb is None else " with that mem_gb"
        )

    @property
    def workers(self) -> int:
        """Workers of a job on each of its nodes."""
        return max(1, self.gpus)

    @property
    def runs_at_once(self) -> int:
        """Runs that a job trains at the same time."""
        return min(self.runs_per_job, self.nodes * self.workers // self.devices_per_run)


LARGEST_GPU_BYTES, LARGEST_NODE_BYTES = 2**40, 2**46
"""Bounds that no GPU and no node reaches: 1 TiB and 64 TiB, a few times the largest of 2026."""

AnyProfile = LocalProfile | SlurmProfile
PROFILES: dict[str, type[LocalProfile] | type[SlurmProfile]] = {"local": LocalProfile, "slurm": SlurmProfile}


def load_profile(name: str, overrides: Sequence[str] = ()) -> AnyProfile:
    """Read a profile from a file, or by name from ./launch and then from the shipped ones.

    An override is `key=value` for any field; `environment.NAME=value`, `sbatch.option=value` and `trainer.key=value`
    set one entry.

    Raises:
        InputError: no such profile, or unknown keys or invalid values.
    """
    path = find_profile(name)
    data = read_yaml(path)
    for override in overrides:
        _apply_override(data, override)
    source = Source(str(path), options_by_key(overrides, "--launch-set"))
    kind = data.get("kind", "local")
    # Without `kind` the profile counts as local, and each SLURM field would be reported as an unknown key.
    slurm_only = sorted(set(data) & (set(SlurmProfile.model_fields) - set(LocalProfile.model_fields)))
    if "kind" not in data and slurm_only:
        raise InputError(f"{source.file}: kind: is required; `kind: slurm` has {', '.join(slurm_only)}")
    if not isinstance(kind, str) or kind not in PROFILES:
        raise InputError(f"{source.of(('kind',))}: kind: {unknown_name('kind', str(kind), PROFILES)}")
    for other, schema in PROFILES.items():
        if misplaced := sorted(data.keys() & schema.model_fields.keys() - PROFILES[kind].model_fields.keys()):
            raise InputError.of(
                f"{source.of((key,), is_unknown=True)}: {key}: unknown key of kind {kind}; `kind: {other}` has it"
                for key in misplaced
            )
    if misplaced := trainer_keys(data.keys() - PROFILES[kind].model_fields.keys()):
        raise InputError.of(
            f"{source.of((key,), is_unknown=True)}: {key}: is a key of the block trainer; write trainer.{key}"
            for key in misplaced
        )
    profile = validate(PROFILES[kind], data, source, _trainer_keys(data))
    if isinstance(profile, LocalProfile):
        with locating(source):
            profile.check_counts()
    return profile


def _trainer_keys(data: dict[str, Any]) -> Iterator[Key]:
    """Yield the keys of the block `trainer`, to suggest for unknown ones."""
    with contextlib.suppress(InputError):  # an unknown trainable is a problem of its own
        block = data.get("trainer")
        yield from (("trainer", *key) for key in keys_of(class_of(block).settings, block))


def read_profile(kind: str, data: dict[str, Any], source: str) -> AnyProfile:
    """Return the profile that a submission holds.

    Raises:
        InputError: it is invalid.
    """
    return validate(PROFILES[kind], data, source)


def _apply_override(data: dict[str, Any], override: str) -> None:
    # Sweeps store overrides with masked values; the mask must not become the value.
    if override.startswith("environment") and override.endswith(f"={HIDDEN_VALUE}"):
        raise InputError(
            f"--launch-set {override}: the value is not kept with a sweep, as it may be a secret; give it again, or "
            f"name a profile that has it with --launch"
        )
    key, value = split_override(override, "--launch-set", "slots=4", rf"{NAME}(\..+)?")
    first, _, subkey = key.partition(".")
    if not subkey:
        data[first] = value
        return
    inner = data.setdefault(first, {})
    if not isinstance(inner, dict):
        raise InputError(f"--launch-set {hide_secrets(override)}: {first} has no parts; {first}=value sets it")
    if first == "trainer":
        set_nested(inner, subkey, value)
    else:  # names with dots are told as they are
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
    """Return a line that says which launch profile is used; empty for the shipped one of this machine."""
    path, shipped_path = find_profile(name), shipped("launch") / f"{name}.yaml"
    note = describe_choice("launch profile", path, shipped_path if shipped_path.is_file() else None)
    # The default, which says nothing new.
    return "" if name == "local" and note.endswith("ships") else note
