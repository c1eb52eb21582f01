"""How to train a finished run again, bit for bit, and what could change its bits here and now, or between runs."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ettsweep import __version__
from ettsweep.files import Json
from ettsweep.launch.project_snapshot import placed
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt, StartedCommand
from ettsweep.runs.data_location import data_env
from ettsweep.runs.folder import RunDir, code_dir
from ettsweep.runs.index import Run
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.trainable import BUILT_IN

CLAIM_FACTS = ("torch", "numpy", "ettsweep", "python", "instruction_set", "device_name")
"""Keys of claim.json that can change bits; threads and device are in the command."""

WRITE_DIFF = 'import json, sys; sys.stdout.write(json.load(open(sys.argv[1]))["git"]["diff"])'
"""Python program that prints the recorded diff, which `git apply` reads."""


@dataclass(frozen=True)
class Reproduction:
    """How to train a run again.

    Attributes:
        command: shell command that trains the run.
        commit: git commit of the code that trained it; None if not recorded.
        differences: a line for each fact that is different on this machine.
        notes: what else the user should know.
    """

    command: str
    commit: str | None
    differences: list[str]
    notes: list[str]


def reproduce(run: RunDir, spec: RunSpec, result: Json | None) -> Reproduction:
    """Return how to train a run from its start just as the attempt that finished it.

    Args:
        run: folder of the run.
        spec: its spec.
        result: its result; None if it is not finished, then the latest attempt is reproduced.
    """
    attempt = _finishing_attempt(run, result)
    claim = attempt.claim() if attempt else {}
    notes = []
    if result is None:
        notes.append(f"run {run.id} is not finished: the command trains it from its start to its end")
    if spec.needs_data:
        kind = spec.data_kind
        notes.append(f"task {kind} needs its data set: add --data PATH, or set {data_env(kind)}")
    command = _command(run, spec, claim, attempt.execution() if attempt else {})
    if attempt is None:
        notes.append("it was never trained: its threads, device and code are unknown")
        return Reproduction(command, None, [], notes)
    if started := attempt.command():
        notes.append(f"by hand: {_by_hand(run, spec, started)}")
    device = str(claim.get("device", "cpu"))
    if device != "cpu":
        notes.append("on a GPU some kernels sum in varying order: the last bits can differ from run to run")
    # A command's own code is not recorded: its digest is in the run's id.
    notes += [*([] if started else _code_notes(attempt)), *_resume_notes(run, attempt)]
    git = attempt.provenance().get("git") or {}
    here = local_facts(device) if "torch" in claim else facts_without_torch(claim)
    return Reproduction(
        command,
        git.get("commit"),
        [*placed(run.path.parent.parent, spec).changes(), *compare_facts(attempt_facts(attempt), here)],
        notes,
    )


def group_by_version(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group finished runs by the version and code of ettsweep that trained them, as recorded."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        recorded = (run.result or {}).get("environment") or {}
        # Results of earlier versions do not have the code, for which files of the attempt are read.
        if "code" not in recorded and (attempt := _finishing_attempt(run.dir, run.result)):
            recorded = attempt_facts(attempt)
        code = f", code {recorded['code'][:8]}" if recorded.get("code") else ""
        groups.setdefault(f"ettsweep {recorded.get('ettsweep', 'of an unrecorded version')}{code}", []).append(run)
    return groups


def find_mixed_versions(runs: Iterable[Run]) -> tuple[str, str] | None:
    """Return a warning if finished runs were trained by different versions of ettsweep, else None.

    The warning names the runs that another version than the most frequent one trained, and what else could change bits
    between the two. With it comes the id of one of these runs.
    """
    # The most frequent version is the reference: its members need no listing.
    (majority, majority_runs), *others = sorted(group_by_version(runs).items(), key=lambda group: -len(group[1])) or [
        ("", [])
    ]
    descriptions = []
    for name, members in others:
        ids = ", ".join(run.id for run in members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
        differs = "; ".join(compare_facts(_facts_without_code(majority_runs[0]), _facts_without_code(members[0])))
        descriptions.append(f"{ids} by {name}{f' (there {differs})' if differs else ''}")
    if not descriptions:
        return None
    groups = ", ".join([f"{len(majority_runs)} trained by {majority}", *descriptions])
    warning = f"runs of different versions are compared: {groups}"
    return warning, others[0][1][0].id


def _facts_without_code(run: Run) -> Json:
    """Return the recorded facts about a finished run, without its code."""
    attempt = _finishing_attempt(run.dir, run.result)
    recorded = attempt_facts(attempt) if attempt else {}
    return {key: value for key, value in recorded.items() if key not in ("ettsweep", "code")}


def _finishing_attempt(run: RunDir, result: Json | None) -> Attempt | None:
    """Return the attempt that finished a run, or else the latest."""
    return run.attempt(result["attempts"]) if result and result.get("attempts") else run.latest_attempt()


def _command(run: RunDir, spec: RunSpec, claim: Json, execution: Json) -> str:
    """Return the shell command, valid in any folder, that trains a run with these recorded settings."""
    command = ["ettsweep", "train", "--spec", str(run.spec_path.resolve()), "--results", f"reproduced-{run.id}"]
    settings = []
    if isinstance(threads := execution.get("threads", claim.get("threads")), int):
        settings.append(f"threads={threads}")
    # Threads and the number of processes change the order of floating-point sums, and so the last bits.
    processes = int(execution.get("processes") or 1)
    if "device" in claim:
        gpus = f"devices={list(range(processes))}"
        settings += [f"slots={processes}", "devices=cpu"] if claim["device"] == "cpu" else [gpus]
    settings += [f"devices_per_run={processes}"] if processes > 1 else []
    recorded = [key for key in spec.settings.recorded if execution.get(key) is not None]
    settings += [f"trainer.trainable={spec.trainable}"] if recorded and spec.trainable != BUILT_IN else []
    settings += [f"trainer.{key}={str(execution[key]).lower()}" for key in recorded]
    for setting in settings:
        command += ["--launch-set", setting]
    return shlex.join(command)


def _by_hand(run: RunDir, spec: RunSpec, started: StartedCommand) -> str:
    """Return the shell command that starts a program as it was for a run, with another folder for what it writes."""
    own, elsewhere = run.path.resolve() / "out", Path(f"reproduced-{run.id}/out").resolve()
    out = started.variables.get("ETTSWEEP_OUT", str(own))  # where it lay then: results may have been moved since
    # Commands of earlier versions were recorded without their variables and files.
    told = started.variables or {
        "ETTSWEEP_LR": repr(spec.lr),
        "ETTSWEEP_WD": repr(spec.wd),
        "ETTSWEEP_SEED": str(spec.seed),
    }
    copies_then, copies_now = (f"{code_dir(path.parent.parent.parent)}/" for path in (Path(out), own))

    def adapted(text: str) -> str:
        return text.replace(copies_then, copies_now).replace(out, str(elsewhere))

    folders, copies = {elsewhere}, list[str]()
    for name in started.files:
        file = elsewhere / name
        folders.add(file.parent)
        old, new = _escaped(out, r"\.*[]^$|"), _escaped(str(elsewhere), r"\&|")
        copies.append(
            f"sed {shlex.quote(f's|{old}|{new}|g')} {shlex.quote(str(own / name))} > {shlex.quote(str(file))}"
        )
    variables = [f"{name}={shlex.quote(adapted(value))}" for name, value in told.items()]
    steps = [
        shlex.join(["mkdir", "-p", *map(str, sorted(folders))]),
        *copies,
        f"cd {shlex.quote(adapted(started.folder))}",
        " ".join([*variables, shlex.join(map(adapted, started.words))]),
    ]
    hint = "" if started.variables else ", with the variables of `env:` and the files of `files:`, if there are any"
    return " && ".join(steps) + hint


def _escaped(text: str, special: str) -> str:
    """Return a text that stands for itself in a command of sed."""
    return text.translate({ord(character): f"\\{character}" for character in special})


def attempt_facts(attempt: Attempt) -> Json:
    """Return the facts about an attempt that could change its bits: versions, code, processor or GPU."""
    claim, origin = attempt.claim(), attempt.provenance()
    code = {"code": origin["code"]} if origin.get("code") else {}
    return {**(origin.get("packages") or {}), **{key: claim[key] for key in CLAIM_FACTS if key in claim}, **code}


def facts_without_torch(claim: Json) -> Json:
    """Return the same facts about this machine for a run whose claim tells nothing of torch."""
    origin = provenance()
    versions = {"python": platform.python_version(), "ettsweep": __version__, "code": origin["code"]}
    return {**origin["packages"], "device_name": claim.get("device_name"), **versions}


def local_facts(device: str) -> Json:
    """Return the same facts about this machine for a device: cpu, or a GPU, of which the first is taken."""
    # In a subprocess, as `doctor` does: a broken torch is a difference, and must not end this command.
    code = (
        "import json, sys, torch; from ettsweep.worker.devices import environment;"
        "cuda = sys.argv[1] != 'cpu' and torch.cuda.is_available();"
        "print(json.dumps(environment('cuda' if cuda else 'cpu')))"
    )
    env = {**os.environ, "PYTHONSAFEPATH": "1"}  # do not import a folder named torch in the current one
    completed = subprocess.run(
        [sys.executable, "-c", code, device],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    environment: Json = dict.fromkeys(CLAIM_FACTS, "unknown: torch cannot be imported")
    if completed.returncode == 0:
        environment = json.loads(completed.stdout.splitlines()[-1])
    origin = provenance()
    return {**origin["packages"], **{key: environment.get(key) for key in CLAIM_FACTS}, "code": origin["code"]}


def compare_facts(recorded: Json, current: Json) -> list[str]:
    """Return a line for each fact that has changed."""
    return [
        f"{key} was {recorded_value}, is {current.get(key) or 'absent'}"
        for key, recorded_value in recorded.items()
        if current.get(key) != recorded_value
    ]


def _code_notes(attempt: Attempt) -> Iterator[str]:
    """Yield where to get the code of an attempt."""
    origin = attempt.provenance()
    git = origin.get("git")
    path = attempt.provenance_path.resolve()
    if not origin:
        yield "its code was not recorded"
    elif not git:
        problem = f" ({origin['problem']})" if origin.get("problem") else ""
        yield f"its code: ettsweep {origin['packages'].get('ettsweep')}, in no git repository{problem}"
    elif not git["dirty"]:
        yield f"its code: `git checkout {git['commit']}`"
    else:
        print_diff = shlex.join(["python3", "-c", WRITE_DIFF, str(path)])
        yield f"its code: commit {git['commit']} with changes, which are in {path}; in a clone of the repository:"
        yield f"  git checkout {git['commit']} && {print_diff} | git apply"
        if git["diff_truncated"]:
            yield "  the recorded changes are incomplete: binary files, or more than 1 MiB"


def _resume_notes(run: RunDir, attempt: Attempt) -> Iterator[str]:
    """Yield where a run went on under other conditions, which no run from the start can reproduce."""
    previous = attempt.parent()
    if not previous or not previous.claim():
        return
    # Oldest first: each attempt is compared with the one that it goes on from.
    yield from _resume_notes(run, previous)
    _, step = attempt.resumed_from()
    start = f"attempt {attempt.number} resumed at step {step}"
    previous_facts = {**attempt_facts(previous), "threads": previous.claim().get("threads"), **previous.execution()}
    resumed_facts = {**attempt_facts(attempt), "threads": attempt.claim().get("threads"), **attempt.execution()}
    for line in compare_facts(previous_facts, resumed_facts):
        yield f"{start} where {line}: no run from the start reproduces that"
