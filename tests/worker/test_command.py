"""Commands as runs: killed, stopped, resumed, diverged, wrong; in this process, and in workers where those matter."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, keep, left_as_before, runs_in, wait_for, worker_pids
from support.own_code import only_run, processes_of, result_of, undisturbed_metrics

from ettsweep.kinds import own_code
from ettsweep.kinds.command import COMMAND
from ettsweep.launch.project_copy import ensure_copies
from ettsweep.launch.slots import Slot
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import LocalLiveness, State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.worker.commands import _leader_host
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import StopSource
from ettsweep.worker.training import train_together
from ettsweep.worker.work_list import WorkList

WALK = '''"""A random walk that keeps its own checkpoints, a step at a time."""
import json, math, os, random, sys, time

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = options["--out"]
rng, value, first = random.Random(int(options["--seed"])), 3.0, 1
if "--resume" in options:
    with open(options["--resume"]) as file:
        state = json.load(file)
    first, value = state["step"] + 1, state["value"]
    rng.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
elif os.listdir(out):
    raise SystemExit("what lies in " + out + " is of another run")
for step in range(first, 61):
    value += 0.2 * (1 + 0.1 * (math.log2(float(options["--lr"])) - 2) ** 2 - value) + rng.gauss(0, 0.01)
    print("[ettsweep]", json.dumps({"step": step, "loss": value, "norm": 1.0}), flush=True)
    if step % 10 == 0:
        with open(os.environ["ETTSWEEP_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "err": value}) + "\\n")
        with open(out + "/part", "w") as file:
            json.dump({"step": step, "value": value, "random": rng.getstate()}, file)
        os.rename(out + "/part", out + "/ckpt-%d.json" % step)
    while os.path.exists(os.environ.get("WALK_HOLDS", "") + "/hold-%d" % step):
        time.sleep(0.01)
    if step == 25 and "WALK_DIES" in os.environ and os.environ["ETTSWEEP_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
'''

RESUME = {"checkpoint": r"{out}/ckpt-(?P<step>\d+)\.json", "add": "--resume {checkpoint}"}
SCORE = {"name": "err", "mode": "min"}
PYTHON = shlex.quote(sys.executable)
COMMAND_LINE = f"{PYTHON} walk.py --lr {{lr}} --wd {{wd}} --seed {{seed}} --out {{out}}"

TELL_WORKER = "kill -TERM $(awk '{{print $4}}' /proc/$PPID/stat); "
"""Of a shell: SIGTERM for its worker, the parent of its supervisor."""

WAIT = "while :; do sleep 0.05; done"

Ask = Callable[..., Any]
Train = Callable[..., RunDir]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a grid file for runs of a command, one unless a test asks for more."""
    (tmp_path / "walk.py").write_text(WALK)

    def write(command: Any, *, runs: int = 1, seeds: int = 1, **block: Any) -> Path:
        content = {"run": {"command": command, "score": SCORE} | block, "seeds": list(range(seeds))}
        content |= {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, runs - 1]}}
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def grid(results: Path, write: Callable[..., Path]) -> Ask:
    """Return a function that submits runs of a command to a worker."""

    def ask(command: Any, *options: object, code: int = 0, **changes: Any) -> Any:
        path = write(command, **changes)
        return ettsweep("grid", path, "--results", results, "--launch-set", "slots=1", *options, code=code)

    return ask


@pytest.fixture
def train(results: Path, write: Callable[..., Path]) -> Train:
    """Return a function that trains a run of a command in this process, to its end, and returns it."""

    def train(command: Any, **changes: Any) -> RunDir:
        ettsweep("train", write(command, **changes), "--results", results, code=None)
        return only_run(results)

    return train


def shell(script: str) -> list[str]:
    """Return a command of a shell; it names lr and seed, which a command must."""
    return ["sh", "-c", f": {{lr}} {{seed}}; {script}"]


def says(step: int, **metrics: object) -> str:
    """Return what a shell prints for ettsweep, in the braces of a template."""
    line = json.dumps({"step": step, **metrics}).replace("{", "{{").replace("}", "}}")
    return f"echo '[ettsweep] {line}'; "


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "parent"), [({"resume": RESUME}, (1, 20)), ({}, (0, 0))], ids=["goes on exactly", "starts again"]
)
def test_a_run_whose_command_is_killed_has_not_failed(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], parent: tuple[int, int]
) -> None:
    monkeypatch.setenv("WALK_DIES", "1")
    run = train(COMMAND_LINE, **block)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(1).failure() == {"kind": "lost", "reason": "killed by SIGKILL (out of memory?)", "details": ""}
    assert run.attempt(2).resumed_from() == parent
    assert (run.path / "attempts" / "0001.out" / "ckpt-20.json").exists() == (not block), "what it left is kept"
    monkeypatch.delenv("WALK_DIES")
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


@pytest.mark.slow
def test_a_command_that_outlives_worker_and_supervisor_is_ended_by_the_next_attempt(
    tmp_path: Path, results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are then later than what its worker has recorded, and no metric is lost all the same."""
    holds = tmp_path / ".holds"  # hidden: no code
    holds.mkdir()
    for step in (25, 45):
        (holds / f"hold-{step}").touch()
    monkeypatch.setenv("WALK_HOLDS", str(holds))
    grid(COMMAND_LINE, resume=RESUME)
    run = only_run(results)
    wait_for(lambda: (run.path / "out" / "ckpt-20.json").exists(), "its checkpoint")
    supervisor, leader = processes_of(run)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (worker_pids(results)[0], supervisor):
            os.kill(pid, number)
    (holds / "hold-25").unlink()
    wait_for(lambda: (run.path / "out" / "ckpt-40.json").exists(), "a later checkpoint")
    wait_for(lambda: processes_of(run) == [leader], "the end of what was killed")
    ettsweep("retry", run.id, "--results", results)
    wait_for(lambda: leader not in processes_of(run), "its end")
    (holds / "hold-45").unlink()
    assert result_of(run)["attempts"] == 2
    assert not processes_of(run)
    assert run.attempt(2).resumed_from()[1] >= 40
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


HALF_SAVED = """
import os, sys
out, resume = sys.argv[3], sys.argv[4:]
step = int(open(resume[0] + "/step").read()) if resume else 0
while step < 4:
    step += 1
    print('[ettsweep] {"step": %d, "err": %d}' % (step, 10 - step), flush=True)
    os.makedirs(f"{out}/s{step}", exist_ok=True)
    open(f"{out}/s{step}/weights", "w").write("x")
    if step == 3 and not resume:
        open(f"{out}/s{step}/more", "w").write("x")
        os.kill(os.getpid(), 9)  # before its step is written
    open(f"{out}/s{step}/step", "w").write(str(step))
"""


def test_a_run_that_fails_right_after_it_resumed_goes_back_to_the_checkpoint_before(
    tmp_path: Path, train: Train
) -> None:
    (tmp_path / "half.py").write_text(HALF_SAVED)
    resume = {"checkpoint": r"{out}/s(?P<step>\d)", "add": "{checkpoint}"}
    run = train(f"{PYTHON} half.py {{lr}} {{seed}} {{out}}", resume=resume)
    told = [str((run.attempt(number).failure() or {}).get("reason")) for number in run.attempt_numbers()]
    assert told[0].startswith("killed by SIGKILL")
    assert "exit code 1: FileNotFoundError" in told[1]
    assert told[1].endswith("it had just resumed from checkpoint s3; next, it resumes from the one before")
    assert "skipped checkpoint s3: attempt 2 failed right after it resumed from it" in run.attempt(3).log_text()
    assert run.attempt(3).resumed_from()[1] == 2
    assert [line["step"] for line in run.history()] == [1, 2, 3, 4]


@pytest.mark.parametrize(("counts_from", "resumes"), [(0, False), (1, True)])
def test_the_first_step_after_a_kill_tells_whether_a_program_goes_on(
    train: Train, counts_from: int, resumes: bool
) -> None:
    first, *rest = (says(step, err=1.0) for step in range(counts_from, 4))
    script = f"if [ $ETTSWEEP_ATTEMPT = 1 ]; then {first} kill -9 $$; fi; {'' if resumes else first}{''.join(rest)}"
    run = train(shell(script), resume={"always": "auto"})
    assert (run.attempt(2).resumed_from()[0] == 1) is resumes
    assert [line["step"] for line in run.history()] == list(range(counts_from, 4))


def test_an_attempt_that_ends_before_its_first_metric_loses_none_of_those_before(train: Train) -> None:
    ends = "case $ETTSWEEP_ATTEMPT in 1) " + says(1, err=0.1) + says(2, err=2.0) + "kill -9 $$;; 2) kill -9 $$;; esac; "
    run = train(shell(ends + says(3, err=3.0)), resume={"always": "auto"})
    assert result_of(run)["score"] == 0.1
    assert run.attempt(3).resumed_from()[1] == 2
    assert [line["step"] for line in run.history()] == [1, 2, 3]


def test_a_cancelled_run_is_killed_with_all_below_where_it_does_not_heed(results: Path, grid: Ask) -> None:
    grid(shell("trap '' TERM; setsid sleep 600 & sleep 600 & " + says(1, err=1.0) + WAIT), stop={"grace": "1s"})
    run = only_run(results)
    wait_for(lambda: run.status().state is State.RUNNING and len(processes_of(run)) >= 4, "its processes")
    told = ettsweep("cancel", run.id, "--results", results).stderr
    assert "1 of them stops at its next step\n" in told, "with no checkpoint: it has no `resume`"
    wait_for(lambda: run.status().state is State.CANCELLED, "its end")
    assert not processes_of(run)
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}
    assert "did not stop within 1 s: killed" in run.attempt(1).log_text()


def test_a_stopped_command_gets_the_signal_of_its_choice_and_may_save_before_it_ends(train: Train) -> None:
    script = "trap 'echo saved > {out}/saved; exit 1' USR1; " + says(1, loss=1.0) + TELL_WORKER + "kill -STOP $$; "
    run = train(shell(script + WAIT), stop={"signal": "USR1", "grace": "1min"})
    assert run.status().state is State.INTERRUPTED
    assert (run.path / "out" / "saved").read_text() == "saved\n"
    assert (run.attempt(1).path / "stop").exists(), "what ETTSWEEP_STOP names"


def test_a_signal_that_reaches_worker_and_command_at_once_interrupts_the_run(train: Train) -> None:
    """As SLURM sends it to all processes of a job: the command ends before its worker has told it to."""
    run = train(shell(says(1, err=1.0) + TELL_WORKER + "exit 0"))
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}


@pytest.mark.parametrize(
    ("first", "steps", "state"), [(1, None, State.INTERRUPTED), (1, 15, State.INTERRUPTED), (0, 15, State.DONE)]
)
def test_a_command_that_is_told_to_stop_and_exits_with_0_is_done_only_at_its_last_step(
    train: Train, first: int, steps: int | None, state: State
) -> None:
    script = "trap 'exit 0' TERM; " + says(first, err=1.0) + says(14, err=1.0) + TELL_WORKER + WAIT
    assert train(shell(script), **({"steps": steps} if steps else {})).status().state is state


def test_half_a_line_at_a_stop_is_no_metric_and_no_failure(results: Path, train: Train) -> None:
    half = "printf 'step 1 err 5.0\\nstep 2 err 3.'; "
    script = "if [ $ETTSWEEP_ATTEMPT = 2 ]; then echo step 2 err 7.5; exit; fi; " + half + TELL_WORKER + "sleep 600"
    run = train(shell(script), reader=r"step (?P<step>\d+) err (?P<err>[\d.]+)", steps=2)
    assert run.status().state is State.INTERRUPTED
    assert [line["err"] for line in run.attempt(1).history(every_step=False)] == [5.0]
    ettsweep("train", run.id, "--results", results)
    assert result_of(run)["score"] == 7.5


# --- how runs end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no luck >&2; exit 3", "exit code 3: no luck"),
        ("echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1", "out of GPU memory (exit code 1)"),
        (says(1, loss=2.0, other=1.0), "the run recorded no err, but loss, other"),
    ],
)
def test_a_failure_says_why(train: Train, script: str, reason: str) -> None:
    run = train(shell(script))
    assert run.status().state is State.FAILED
    assert run.status().reason.startswith(reason)
    assert not processes_of(run)


def test_a_command_that_cannot_resume_is_told_which_job_would_be_long_enough(
    results: Path, write: Callable[..., Path]
) -> None:
    spec = load_sweep_spec(write(shell("sleep 600")), [], []).bound().specs()[0]
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    ensure_copies(results, [spec])
    with left_as_before():
        warned = StopSource()
        warned.stop_reason = "SIGUSR2"
        profile = SlurmProfile(kind="slurm", time_min=240)
        work = WorkList([run], Slot("0-0", "cpu", None, 1), profile, {}, warned, LocalLiveness(), {})
        train_together([(run, attempt)], work, Programs())
    told = f"; without `resume` it starts over: `ettsweep retry {run.id} --more-time 8h` gives it more time"
    assert (attempt.failure() or {})["reason"] == f"out of time or preempted{told}"


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(train: Train) -> None:
    run = train(shell(says(1, loss=1.0) + says(2, loss=float("nan")) + "sleep 600"))
    result = result_of(run)
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", 2, None)
    assert not processes_of(run)


def test_exit_code_75_asks_to_resume(train: Train) -> None:
    script = f"if [ $ETTSWEEP_ATTEMPT = 2 ]; then {says(3, err=0.5)} exit 0; fi; {says(1, loss=1.0)} exit 75"
    assert result_of(train(shell(script)))["attempts"] == 2


@pytest.mark.parametrize(
    ("recorded", "steps", "ends"),
    [
        ([12, 13, 14], 40, 14),
        ([38, 39], 40, None),  # counted from 0
        ([37, 38], 40, 38),
        ([30, 60, 90], 100, None),  # every 30 steps, and not at the end
        ([970, 980, 990, 993], 1000, None),  # the loss every 10 steps, the score every 331
        ([0], 1, None),
        ([], 40, 0),
    ],
)
def test_a_run_that_ends_well_before_its_last_step_has_failed(
    tmp_path: Path, recorded: list[int], steps: int, ends: int | None
) -> None:
    def early_end(**block: Any) -> str:
        given = {"command": ["true", "{lr}", "{seed}"], "score": SCORE, "steps": steps} | block
        recipe = COMMAND.read(given, (), "run", tmp_path)
        return own_code.early_end(recipe.info, [{"step": step} for step in recorded])

    told = f"ended at step {ends} of {steps}; if runs may end early, set `ends_early: true` under `run:`"
    assert early_end() == ("" if ends is None else told)
    assert not early_end(ends_early=True)
    assert not early_end(steps=None)


def test_a_run_that_ends_early_fails_and_is_kept_once_it_may(train: Train) -> None:
    ends = shell("".join(says(step, err=1.0) for step in (7, 8, 9)))
    assert train(ends, steps=40).status().reason.startswith("ended at step 9 of 40; ")
    assert result_of(train(ends, steps=40, ends_early=True))["steps"] == 9


# --- what a command is given ------------------------------------------------------------------------------------------


def test_a_command_sees_its_run_in_its_environment_and_no_tasks_of_slurm(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = {"NTASKS_PER_NODE": "8", "JOB_ID": "5", "JOB_NAME": "ours", "JOB_END_TIME": "1234"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    run = train(shell("env > {out}/env; " + says(1, err=1.0)), env={"MINE": "{lr*2}", "FLAG": 1})
    lines = (run.path / "out" / "env").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    expected = {
        "MINE": "0.5",
        "FLAG": "1",
        "ETTSWEEP_RUN": run.id,
        "ETTSWEEP_ATTEMPT": "1",
        "ETTSWEEP_OUT": str((run.path / "out").resolve()),
        "ETTSWEEP_LR": "0.25",
        "ETTSWEEP_WD": "0.5",
        "ETTSWEEP_SEED": "0",
        "ETTSWEEP_STRATEGY": "standard",
        "CUDA_VISIBLE_DEVICES": "",
        "PET_NPROC_PER_NODE": "1",
        "SLURM_JOB_NAME": "bash",
        "WANDB_RUN_ID": run.id,
        "WANDB_RUN_GROUP": run.spec().family_id,
        "ETTSWEEP_DEADLINE": "1234",
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert "SLURM_NTASKS_PER_NODE" not in seen


def test_a_file_is_written_for_each_run(tmp_path: Path, train: Train) -> None:
    (tmp_path / "conf.yaml").write_text("optim: {lr: 1.0, wd: 0.1}\nseed: 7\n")
    files = {"{out}/conf.yaml": {"from": "conf.yaml", "set": {"optim.lr": "{lr}", "seed": "{seed}"}}}
    run = train(["sh", "-c", f"cat {{out}}/conf.yaml; {says(1, err=1.0)}"], files=files)
    assert yaml.safe_load((run.path / "out" / "conf.yaml").read_text()) == {"optim": {"lr": 0.25, "wd": 0.1}, "seed": 0}


def test_metrics_beyond_fifty_names_are_left_out_and_the_score_never(train: Train) -> None:
    many = {f"norm_{number}": 1.0 for number in range(60)}
    run = train(shell(says(1, **many) + says(2, err=1.0, norm_0=2.0)), metrics=["*"])
    assert result_of(run)["score"] == 1.0
    names = {name for line in run.history() for name in line} - {"step"}
    assert names == {"err", *(f"norm_{number}" for number in range(46))}, "the first ones, of four that have a place"
    assert "warning: more than 50 names of metrics: left out norm_46; see" in run.attempt(1).log_text()


def test_a_worker_of_commands_imports_no_torch(results: Path, grid: Ask) -> None:
    # The worker is the parent of the supervisor, which is that of the shell.
    script = "w=$(awk '/PPid/ {{print $2}}' /proc/$PPID/status); grep -c -e libtorch -e pandas /proc/$w/maps; "
    grid(shell(script + says(1, err=1.0)))
    run = only_run(results)
    result_of(run)
    assert "\n0\n" in run.attempt(1).log_text()


def test_versions_are_those_of_the_python_that_starts_the_command(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder, site = tmp_path / "env/bin", tmp_path / "env/lib/python3.12/site-packages"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    for each in ("torch-2.8.0", "Flash_Attn-2.7", "pip-24.0"):
        (site / f"{each}.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    run = train(["python", "-c", """print('[ettsweep] {{"step": 1, "err": 1}}')""", "{lr}", "{seed}"])
    assert result_of(run)["environment"]["packages"] == {"torch": "2.8.0", "flash-attn": "2.7"}


# --- what a run is ----------------------------------------------------------------------------------------------------


def test_what_changes_the_numbers_is_part_of_the_id_and_nothing_else(tmp_path: Path, grid: Ask) -> None:
    data = tmp_path / "data.bin"

    def run_id(command: str = COMMAND_LINE, **block: Any) -> str:
        return str(json.loads(grid(command, "--dry-run", "--format", "json", **block).stdout)[0]["run"])

    def of_data(content: bytes, digest: str = "sampled") -> str:
        data.write_bytes(content)
        return run_id(data={"paths": "data.bin", "digest": digest})

    first = run_id()
    assert run_id(resume=RESUME, stop={"grace": "1min"}, steps=60, ends_early=True, metrics=["norm"]) == first
    assert run_id(workdir=".") == first
    assert len({first, run_id(f"{COMMAND_LINE} --steps 50"), run_id(env={"A": "1"}), of_data(b"c"), of_data(b"d")}) == 5
    large, changed = bytes(3 * 2**20), bytes(2**20) + b"1" + bytes(2**21 - 1)
    assert of_data(large) == of_data(changed), "of large files, samples count"
    assert of_data(large, "full") != of_data(changed, "full")
    (tmp_path / "walk.py").write_text(WALK.replace("3.0, 1", "3.5, 1"))
    assert run_id() != first


def facts(spec: RunSpec, **changes: Any) -> dict[str, Any]:
    """Return the result of a run on a slope with noise, with other values for some entries."""
    noise = spec.seed / 70
    return {"status": "done", "score": 1 + spec.lr / 3 + noise, "steps": 2, "device_s": 1.0} | changes


@pytest.mark.parametrize(
    ("result", "note"),
    [
        (lambda s: facts(s, score=s.lr), "points have identical scores: does training use its seed?"),
        (
            lambda s: facts(s, environment={"packages": {"torch": f"2.{s.seed}"}}),
            "its runs differ in torch (2 with 2.0, 2 with 2.1), which may change scores",
        ),
        (lambda s: facts(s, steps=1 + s.seed), "most runs ended at step 1, but 2 of 4 did not"),
        (lambda s: facts(s, score=round(facts(s)["score"], 1)), "scores come in steps of 0.1, which is above a tenth"),
        (lambda s: facts(s, resumed_step=s.seed), "the program resumed 2 of 4 runs, perhaps with other numbers"),
    ],
)
def test_a_verdict_notes_what_its_runs_lack(
    results: Path, write: Callable[..., Path], result: Callable[[RunSpec], dict[str, Any]], note: str
) -> None:
    sweep_spec = load_sweep_spec(write(COMMAND_LINE, runs=3, seeds=2), [], []).bound()
    keep(results, sweep_spec)
    for spec in sweep_spec.specs():
        run = RunDir.create(results, spec)
        assert run.claim({}, after=0)
        assert run.finish(result(spec), [])
    judged = ettsweep("verify-optimum", "--dry-run", "--margin", "5%", "--results", results, code=None)
    assert note in judged.stderr


# --- what it leaves behind --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_outputs_go_but_those_that_are_kept_and_those_of_the_best_point(results: Path, grid: Ask) -> None:
    script = "cd {out}; mkdir -p states/last; touch states/a states/last/b best.pt log.txt; ln -s / link; "
    script += """echo '[ettsweep] {{"step": 1, "err":' $1 '}}'"""
    grid(["bash", "-c", script, "run", "{lr}", "{seed}"], "--follow", runs=3, keep=["best.pt", "log*"])

    def outputs() -> dict[float, set[str]]:
        return {run.spec().lr: {path.name for path in (run.path / "out").rglob("*")} for run in runs_in(results)}

    before = outputs()
    assert all(names == {"states", "a", "last", "b", "best.pt", "log.txt", "link"} for names in before.values())
    listed = ettsweep("clean", "--outputs", "--dry-run", "--format", "json", "--results", results).stdout
    rows = [row["path"] for row in json.loads(listed) if row["reason"] == "output of a finished run"]
    assert sorted(Path(path).name for path in rows) == ["link", "link", "states", "states"]
    ettsweep("clean", "--outputs", "--yes", "--results", results)
    left = {"best.pt", "log.txt"}
    assert outputs() == {0.25: before[0.25], 0.5: left, 1.0: left}
    assert all(run.result() for run in runs_in(results))


@pytest.mark.slow
def test_the_middle_of_a_long_output_is_left_out_and_its_metrics_are_not(train: Train) -> None:
    flood = f"for i in $(seq 7000); do echo {'x' * 1023}; done; "
    run = train(shell(f"echo begin; {flood}{says(1, err=2.0)}{flood}{says(2, err=1.0)}echo end"))
    assert run.history() == [{"step": 1, "err": 2.0}, {"step": 2, "err": 1.0}]
    output = run.attempt(1).output_path.read_text()
    assert (output.startswith("begin\n"), output.endswith("end\n")) == (True, True)
    assert "MiB left out here]" in output
    assert 11 * 2**20 < len(output) < 11.1 * 2**20


@pytest.mark.parametrize(("told", "address"), [("192.0.2.7", "192.0.2.7"), ("127.0.0.1", "n1"), ("", "n1")])
def test_nodes_meet_where_srun_is_reached_else_at_the_first_nodes_name(
    monkeypatch: pytest.MonkeyPatch, told: str, address: str
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", told)
    assert _leader_host("n1") == address
