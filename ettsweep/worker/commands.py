"""The program of a run: the user's command, `ettsweep.call` for a function, `ettsweep.trainer` for a Transformer."""

import contextlib
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

from ettsweep.errors import InputError
from ettsweep.files import Json, dumps, storage_errors, write_atomic
from ettsweep.kinds.command import CommandRecipe
from ettsweep.kinds.function import FunctionRecipe
from ettsweep.kinds.template import Value, rendered, written
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.slots import Slot
from ettsweep.project_code import import_folders
from ettsweep.provenance import belongs_to_environment, installed_versions, launcher_version
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import BUILT_IN, TRAINING_LOSSES, RunSpec, variable_of
from ettsweep.strategies.strategy import strategy_name
from ettsweep.worker.checkpoints import Checkpoint
from ettsweep.worker.program import OUT_VARIABLE, Command
from ettsweep.worker.work_list import WorkList

PYTHON = (sys.executable, "-u", "-P", "-m")
"""Words that start a module of ettsweep; `-P` ignores a module of that name in the project."""

GRACE_S = 300.0
"""Seconds that a function or a Transformer has to save and exit: states may be large."""

_STEP_VARIABLE = re.compile(r"SLURM_(?!CONF|CLUSTER|JOB|ARRAY|SUBMIT|RESTART)")


@dataclass(frozen=True)
class Start:
    """How to start and stop the program of a run.

    Attributes:
        command: the program.
        variables: of the run.
        packages: versions of its packages.
        signal: to stop it.
        signals_at_once: whether the signal comes with the request to stop, or only after its grace.
        grace_s: seconds that it has to exit.
        silent_s: seconds without output or metrics until it fails; None for no limit.
        keeps_time: whether it writes timings itself.
    """

    command: Command
    variables: Mapping[str, str]
    packages: Mapping[str, str] = field(default_factory=dict)
    signal: str = "TERM"
    signals_at_once: bool = True
    grace_s: float = GRACE_S
    silent_s: float | None = None
    keeps_time: bool = False


@dataclass(frozen=True)
class Given:
    """A claimed run and its worker.

    Attributes:
        run, spec, attempt: a recipe of own code has its folder in its copy.
        work: of the worker.
        command: the recipe, if it is a user's command.
    """

    run: RunDir
    spec: RunSpec
    attempt: Attempt
    work: WorkList

    @property
    def command(self) -> CommandRecipe | None:
        return cast(CommandRecipe, self.spec) if self.spec.trainable == "command" else None

    @property
    def out(self) -> Path:
        """The run's own folder for files."""
        return (self.run.path / "out").resolve()

    @property
    def strategy(self) -> str:
        return strategy_name(self.spec.strategy.s)

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of metrics that show a divergence."""
        info = self.spec.info
        if self.spec.trainable == BUILT_IN:  # until the next training loss
            return "loss", f"val_loss@{info.steps}"
        return (info.metric.column, *TRAINING_LOSSES)


def start_of(given: Given, checkpoint: Checkpoint | None, history: str) -> Start:
    """Return the program of a run.

    Args:
        given: the attempt at it.
        checkpoint: to resume from.
        history: digest of the metrics up to there, from `Run.save`.

    Raises:
        InputError: a part of it is missing, or has changed.
    """
    variables = _variables(given, checkpoint, history)
    match given.spec.trainable:
        case "command":
            return _command(given, checkpoint, variables)
        case "transformer":
            return _transformer(given, variables)
    return _function(given, variables)


def _variables(given: Given, checkpoint: Checkpoint | None, history: str) -> dict[str, str]:
    """Return the variables of all programs of a run."""
    run, spec, attempt = given.run, given.spec, given.attempt
    metrics = attempt.recorded_path if given.command else attempt.metrics_path
    return {
        "ETTSWEEP_RUN": run.id,
        "ETTSWEEP_ATTEMPT": str(attempt.number),
        OUT_VARIABLE: str(given.out),
        "ETTSWEEP_OUTPUT": str(attempt.output_path.resolve()),
        "ETTSWEEP_METRICS": str(metrics.resolve()),
        "ETTSWEEP_LOSSES": "\n".join(given.losses),
        "ETTSWEEP_STOP": str(attempt.stop_path.resolve()),
        "ETTSWEEP_STATES": str(attempt.states_path.resolve()),
        **{variable_of(name): written(value) for name, value in _inputs(spec).items()},
        "ETTSWEEP_INPUTS": json.dumps(_inputs(spec)),
        "ETTSWEEP_SEED": str(spec.seed),
        "ETTSWEEP_STRATEGY": given.strategy,
        "ETTSWEEP_DATA": given.work.data_of(run) or "",
        "ETTSWEEP_CHECKPOINT": str(checkpoint.path.resolve()) if checkpoint else "",
        "ETTSWEEP_STEP": str(checkpoint.step or 0) if checkpoint else "0",
        "ETTSWEEP_HISTORY": history,
        "ETTSWEEP_DEADLINE": os.environ.get("SLURM_JOB_END_TIME", ""),
        "WANDB_RUN_ID": run.id,
        "WANDB_RESUME": "allow",
        "WANDB_NAME": run.id,
        "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or spec.family_id,
        "WANDB_DIR": str(given.out),
    }


# --- the user's own words ---------------------------------------------------------------------------------------------


def _command(given: Given, checkpoint: Checkpoint | None, variables: dict[str, str]) -> Start:
    recipe = given.command
    assert recipe is not None
    folder = recipe.run_folder
    if changed := recipe.data_change():
        raise InputError(f"{changed}; restore them, or make new runs: `ettsweep grid` with another --name")
    if not folder.is_dir():
        raise InputError(f"workdir: there is no folder {folder}")
    resume, added = recipe.resume, tuple[str, ...]()
    if resume is not None and given.attempt.number > 1:
        added = resume.add if checkpoint else resume.always
    values = _values(given, checkpoint)
    texts = [*recipe.argv, *recipe.strategies.get(given.strategy, ()), *added]
    words = tuple(rendered(word, values) for word in texts)
    for name, file in recipe.files.items():
        path = Path(rendered(name, values))
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, file.content(Path(recipe.folder), values))
    # A script under `files:` finds the modules beside its original.
    scripts = (Path(recipe.folder, file.source) for file in recipe.files.values())
    beside = dict.fromkeys(script.parent.resolve() for script in scripts if script.suffix == ".py")
    environment = _environment(recipe.nodes) | {"PET_NPROC_PER_NODE": str(recipe.gpus), "PYTHONUNBUFFERED": "1"}
    # The worker's safe path would hide the modules beside a script.
    environment.pop("PYTHONSAFEPATH", None)
    if folders := [*beside, *import_folders(folder)]:
        above = filter(None, [os.environ.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *above])
    own = {name: rendered(text, values) for name, text in recipe.env.items()}
    packages = _packages(words, folder, (environment | own).get("PATH"))
    command = Command(words, folder, environment, _srun(recipe.nodes))
    return Start(
        command,
        variables | _meeting(given, recipe.nodes) | own,
        packages,
        recipe.stop.signal,
        grace_s=recipe.stop.grace,
        silent_s=recipe.stop.silent,
    )


def _values(given: Given, checkpoint: Checkpoint | None) -> dict[str, Value]:
    spec = given.spec
    values: dict[str, Value] = {**_inputs(spec), "seed": spec.seed, "out": str(given.out)}
    assert given.command is not None
    devices = given.command.gpus * given.command.nodes
    values |= {"id": given.run.id, "strategy": given.strategy, "devices": devices}
    if checkpoint is not None:
        values |= {"checkpoint": str(checkpoint.path), "step": checkpoint.step or 0}
    return values


def _inputs(spec: RunSpec) -> dict[str, Value]:
    return {**spec.values, **spec.variant}


def _packages(words: Sequence[str], folder: Path, path: str | None) -> dict[str, str]:
    """Return the versions of a program's packages: in its own environment, or else in that of `python`."""
    program = words[0]
    found = shutil.which(str(folder / program) if "/" in program else program, path=path)
    if not (found and belongs_to_environment(Path(found))):
        found = shutil.which("python", path=path)
    if not found:
        return {}
    module = next((word for flag, word in pairwise(words) if flag == "-m"), "")
    return installed_versions(Path(found)) | launcher_version(Path(found), module)


# --- functions and Transformers ---------------------------------------------------------------------------------------


def _function(given: Given, variables: dict[str, str]) -> Start:
    recipe = cast(FunctionRecipe, given.spec)
    folder = Path(recipe.folder).resolve()
    command = Command((*PYTHON, "ettsweep.call", recipe.function), folder, _environment(), is_warm=True)
    own = {
        "ETTSWEEP_ARGUMENTS": json.dumps(recipe.arguments),
        "ETTSWEEP_FOLDERS": os.pathsep.join(map(str, [folder, *import_folders(folder)])),
        "ETTSWEEP_MODULE": str(recipe.module_path.resolve()),
    }
    return Start(command, variables | own, installed_versions(Path(sys.executable)))


def trainer_settings(profile: AnyProfile, slot: Slot, alike: int = 1, workers: int = 1) -> Json:
    """Return the trainer's settings from a launch profile and a slot.

    Args:
        profile: the launch profile.
        slot: the devices and threads.
        alike: number of runs of one recipe that the worker trains.
        workers: number of workers that train at once, itself included.
    """
    threads = getattr(profile, "threads", None)
    return {
        "checkpoint_every_s": profile.checkpoint_every_s,
        "checkpoint_every_steps": profile.checkpoint_every_steps,
        "device": slot.device,
        "gpus": [each.gpu for each in (slot, *slot.others) if each.gpu is not None],
        "sharers": slot.sharers,
        "slot_threads": slot.threads,
        "threads": threads if isinstance(threads, int) else None,
        "alike": alike,
        "workers": workers,
        "trainer": profile.trainer.model_dump(),
    }


def _transformer(given: Given, variables: dict[str, str]) -> Start:
    work = given.work
    own = trainer_settings(work.profile, work.slot, work.alike(given.run), work.workers)
    variables |= {"ETTSWEEP_SPEC": str(given.run.spec_path), "ETTSWEEP_SETTINGS": dumps(own)}
    devices, nodes = work.profile.devices_per_run, getattr(work.profile, "nodes", 1)
    if devices == 1:
        return Start(
            Command((*PYTHON, "ettsweep.trainer"), Path.cwd(), _environment(), is_warm=True), variables, keeps_time=True
        )
    environment = _environment(nodes) | {"PET_NPROC_PER_NODE": str(devices // nodes)}
    words = (*PYTHON, "ettsweep.trainer.torchrun")
    command = Command(words, Path.cwd(), environment, _srun(nodes))
    meeting = _meeting(given, nodes)
    return Start(command, variables | meeting, signals_at_once=False, keeps_time=True)


# --- machines ---------------------------------------------------------------------------------------------------------


def _environment(nodes: int = 1) -> dict[str, str]:
    """Return the variables of a program, except those of its run."""
    # Lightning would requeue the job, and others would use the job's tasks as theirs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_NTASKS")}
    if nodes > 1:  # a srun inherits nodes, CPUs and memory of an outer one
        environment = {name: value for name, value in environment.items() if not _STEP_VARIABLE.match(name)}
    if "SLURM_JOB_ID" in environment:
        environment["SLURM_JOB_NAME"] = "bash"
    return environment


def _meeting(given: Given, nodes: int) -> dict[str, str]:
    """Return the variables by which processes of a run find each other; PET_... are for torchrun."""
    port = str(_free_port())
    if nodes == 1:
        return {"PET_NNODES": "1", "PET_STANDALONE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    host = _leader_host(socket.gethostname())
    meeting = {"PET_NNODES": str(nodes), "MASTER_ADDR": host, "MASTER_PORT": port}
    name = f"{given.run.id}-{given.attempt.number}"
    return meeting | {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"{host}:{port}", "PET_RDZV_ID": name}


def _srun(nodes: int) -> tuple[str, ...]:
    """Return the words that start a command on each node of this job; none on one node."""
    if nodes == 1:
        return ()
    if (given := os.environ.get("SLURM_JOB_NUM_NODES", "1")) != str(nodes):
        raise InputError(f"nodes: the run needs {nodes}, but this job has {given}")
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
    counts = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}")
    return "srun", "--overlap", *counts, "--export=ALL", "--input=all", "--kill-on-bad-exit=1", "--unbuffered"


def _leader_host(name: str) -> str:
    """Return the address of a job's first node: that of srun, which runs there, else the node's name.

    A name may resolve to another interface on each node, and to loopback (such as 127.0.1.1) on the node itself.
    """
    address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return name


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
