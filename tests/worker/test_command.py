"""Commands as runs, in real workers: killed, stopped, resumed, diverged, wrong."""

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
from support.commandline import ettsweep, left_as_before, runs_in, wait_for, worker_pids
from support.own_code import only_run, processes_of, result_of, undisturbed_metrics

from ettsweep.kinds import own_code
from ettsweep.kinds.command import COMMAND
from ettsweep.launch.project_copy import ensure_copies
from ettsweep.launch.slots import Slot
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import LocalLiveness, State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.tried import Outcome, write_outcome
from ettsweep.worker.commands import _leader_host
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import StopSource
from ettsweep.worker.training import train_together
from ettsweep.worker.work_list import WorkList

WALK = '''"""A random walk that keeps its own checkpoints, a step at a time."""
import argparse, json, math, os, random, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--wd", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()
rng, value, first = random.Random(options.seed), 3.0, 1
if options.resume:
    with open(options.resume) as file:
        state = json.load(file)
    first, value = state["step"] + 1, state["value"]
    rng.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
elif os.listdir(options.out):
    raise SystemExit("what lies in " + options.out + " is of another run")
for step in range(first, options.steps + 1):
    value += 0.2 * (1 + 0.1 * (math.log2(options.lr) - 2) ** 2 - value) + rng.gauss(0, 0.01)
    print("[ettsweep]", json.dumps({"step": step, "loss": value, "norm": 1.0}), flush=True)
    if step % 10 == 0:
        with open(os.environ["ETTSWEEP_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "err": value}) + "\\n")
        with open(options.out + "/part", "w") as file:
            json.dump({"step": step, "value": value, "random": rng.getstate()}, file)
        os.rename(options.out + "/part", options.out + "/ckpt-%d.json" % step)
    while step in (25, 45) and "WALK_HOLDS" in os.environ and os.path.exists(os.environ["WALK_HOLDS"] + str(step)):
        time.sleep(0.01)
'''

RESUME = {"checkpoint": r"{out}/ckpt-(?P<step>\d+)\.json", "add": "--resume {checkpoint}"}
SCORE = {"name": "err", "mode": "min"}
ARGUMENTS = "--lr {lr} --wd {wd} --seed {seed} --out {out}"
PYTHON = shlex.quote(sys.executable)

Ask = Callable[..., Any]
Go = Callable[[], None]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that requests runs of a command, one unless it is told otherwise."""
    (tmp_path / "walk.py").write_text(WALK)

    def ask(command: Any, *options: object, runs: int = 1, seeds: int = 1, code: int = 0, **block: Any) -> Any:
        content = {"run": {"command": command, "score": SCORE} | block, "seeds": list(range(seeds))}
        content |= {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, runs - 1]}}
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content))
        return ettsweep("grid", path, "--results", results, "--launch-set", "slots=1", *options, code=code)

    return ask


@pytest.fixture
def let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Have walks hold after step 25, and after step 45 if there is a file hold-45; return what lets them go on at 25."""
    (tmp_path / ".holds").mkdir()  # hidden: no code
    (tmp_path / ".holds" / "hold-25").touch()
    monkeypatch.setenv("WALK_HOLDS", str(tmp_path / ".holds" / "hold-"))
    return (tmp_path / ".holds" / "hold-25").unlink


def walk(more: str = "") -> str:
    return f"{PYTHON} walk.py {ARGUMENTS} {more}"


def shell(script: str) -> list[str]:
    """Return a command of a shell; it names lr and seed, which a command must."""
    return ["sh", "-c", f": {{lr}} {{seed}}; {script}"]


def says(step: int, **metrics: object) -> str:
    """Return what a shell prints for ettsweep, in the braces of a template."""
    line = json.dumps({"step": step, **metrics}).replace("{", "{{").replace("}", "}}")
    return f"echo '[ettsweep] {line}'; "


def in_training(results: Path) -> tuple[RunDir, Attempt]:
    """Wait until a run has a checkpoint of step 20, and return its latest attempt."""
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: (run.path / "out" / "ckpt-20.json").exists(), "its checkpoint")
    attempt = run.latest_attempt()
    assert attempt is not None
    return run, attempt


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_exactly(tmp_path: Path, results: Path, grid: Ask, let_go: Go) -> None:
    """Of one whose worker is told to end, see `test_exact_resume.py`."""
    grid(walk(), resume=RESUME)
    run, attempt = in_training(results)
    os.kill(worker_pids(results)[0], signal.SIGKILL)
    wait_for(lambda: run.status().state is State.INTERRUPTED, "its end")
    wait_for(lambda: not processes_of(run), "the end of its processes")
    let_go()
    assert attempt.failure() is None
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (1, 20)
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


def test_a_run_whose_command_is_killed_is_no_failed_one_and_goes_on_exactly(
    tmp_path: Path, results: Path, grid: Ask, let_go: Go
) -> None:
    grid(walk(), resume=RESUME)
    run, attempt = in_training(results)
    os.kill(processes_of(run)[-1], signal.SIGKILL)
    let_go()
    assert result_of(run)["attempts"] == 2
    assert attempt.failure() == {"kind": "lost", "reason": "killed by SIGKILL (out of memory?)", "details": ""}
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


@pytest.mark.slow
def test_a_command_that_outlives_worker_and_supervisor_is_ended_by_the_next_attempt(
    tmp_path: Path, results: Path, grid: Ask, let_go: Go
) -> None:
    """Its checkpoints are then later than what its worker has recorded, and no metric is lost all the same."""
    (tmp_path / ".holds" / "hold-45").touch()
    grid(walk(), resume=RESUME)
    run, _ = in_training(results)
    supervisor, leader = processes_of(run)
    for pid in (worker_pids(results)[0], supervisor):
        os.kill(pid, signal.SIGSTOP)
    for pid in (worker_pids(results)[0], supervisor):
        os.kill(pid, signal.SIGKILL)
    let_go()
    wait_for(lambda: (run.path / "out" / "ckpt-40.json").exists(), "a later checkpoint")
    wait_for(lambda: processes_of(run) == [leader], "the end of what was killed")
    ettsweep("retry", run.id, "--results", results)
    wait_for(lambda: leader not in processes_of(run), "its end")
    (tmp_path / ".holds" / "hold-45").unlink()
    assert result_of(run)["attempts"] == 2
    assert not processes_of(run)
    assert run.attempt(2).resumed_from()[1] >= 40
    judge = "verify-optimum", "--dry-run", "--rule", "paper", "--results", results
    text = "the program resumed 1 of 1 runs, "
    assert f"{text}perhaps with other numbers" in ettsweep(*judge, code=1).stderr
    tried = {"family": run.spec().family_id, "made": "now", "seeds_differ": True, "repeats": True, "resume": "exact"}
    write_outcome(results, "sweep", Outcome.model_validate(tried | {"observations": ()}))
    assert f"{text}exactly, as in its trial" in ettsweep(*judge, code=1).stderr
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


@pytest.mark.slow
def test_a_run_that_cannot_resume_starts_again_in_an_empty_folder(
    tmp_path: Path, results: Path, grid: Ask, let_go: Go
) -> None:
    grid(walk())
    run, _ = in_training(results)
    os.kill(processes_of(run)[-1], signal.SIGKILL)
    let_go()
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (0, 0)
    assert (run.path / "attempts" / "0001.out" / "ckpt-20.json").exists(), "what it left is kept"
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


@pytest.mark.slow
def test_a_run_that_fails_right_after_it_resumed_goes_back_to_the_checkpoint_before(
    tmp_path: Path, results: Path, grid: Ask
) -> None:
    (tmp_path / "half.py").write_text(HALF_SAVED)
    resume = {"checkpoint": r"{out}/s(?P<step>\d)", "add": "{checkpoint}"}
    grid(f"{PYTHON} half.py {{lr}} {{seed}} {{out}}", "--follow", resume=resume)
    run = only_run(results)
    told = [str((run.attempt(number).failure() or {}).get("reason")) for number in run.attempt_numbers()]
    assert told[0].startswith("killed by SIGKILL")
    assert "exit code 1: FileNotFoundError" in told[1]
    assert told[1].endswith("it had just resumed from checkpoint s3; next, it resumes from the one before")
    assert "skipped checkpoint s3: attempt 2 failed right after it resumed from it" in run.attempt(3).log_text()
    assert run.attempt(3).resumed_from()[1] == 2
    assert [line["step"] for line in run.history()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("counts_from", "resumes"), [(0, False), pytest.param(10, False, marks=pytest.mark.slow), (1, True)]
)
def test_the_first_step_after_a_kill_tells_whether_a_program_goes_on(
    results: Path, grid: Ask, counts_from: int, resumes: bool
) -> None:
    steps = range(counts_from, 4 * max(1, counts_from), max(1, counts_from))
    first, *rest = (says(step, err=float(step + 1)) for step in steps)
    script = f"if [ $ETTSWEEP_ATTEMPT = 1 ]; then {first} kill -9 $$; fi; {'' if resumes else first}{''.join(rest)}"
    grid(shell(script), "--follow", resume={"always": "auto"})
    run = only_run(results)
    assert (run.attempt(2).resumed_from()[0] == 1) is resumes
    assert [line["step"] for line in run.history()] == list(steps)


def test_a_cancelled_run_is_killed_with_all_below_where_it_does_not_heed(results: Path, grid: Ask) -> None:
    script = "trap '' TERM; setsid sleep 600 & sleep 600 & " + says(1, err=1.0) + "while :; do sleep 0.05; done"
    grid(shell(script), stop={"grace": "1s"})
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.status().state is State.RUNNING and len(processes_of(run)) >= 4, "its processes")
    told = ettsweep("cancel", run.id, "--results", results).stderr
    assert "1 of them stops at its next step\n" in told, "with no checkpoint: it has no `resume`"
    wait_for(lambda: run.status().state is State.CANCELLED, "its end")
    assert not processes_of(run)
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}
    assert "did not stop within 1 s: killed" in run.attempt(1).log_text()


def test_a_command_that_is_told_to_stop_may_save_first(tmp_path: Path, results: Path, grid: Ask) -> None:
    script = "trap 'echo saved > {out}/saved; exit 1' USR1; " + says(1, loss=1.0) + "while :; do sleep 0.05; done"
    grid(shell(script), stop={"signal": "USR1"})
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.attempt(1).log_text().endswith("}\n"), "its first step")
    os.kill(worker_pids(results)[0], signal.SIGTERM)
    wait_for(lambda: run.status().state is State.INTERRUPTED, "its end")
    assert (run.path / "out" / "saved").read_text() == "saved\n"
    assert (run.attempt(1).path / "stop").exists(), "what ETTSWEEP_STOP names"


def test_a_signal_that_reaches_worker_and_command_at_once_interrupts_the_run(results: Path, grid: Ask) -> None:
    """As SLURM sends it to all processes of a job: the command ends before its worker has told it to."""
    both = "set -- $(cat /proc/$PPID/stat); kill -TERM $4; exit 0"  # the parent of its supervisor
    grid(shell(says(1, err=1.0) + both))
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.attempt(1).failure(), "its end")
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}


@pytest.mark.parametrize(
    ("first", "steps", "state"),
    [
        pytest.param(1, None, State.CANCELLED, marks=pytest.mark.slow),
        (1, 40, State.CANCELLED),
        pytest.param(1, 14, State.DONE, marks=pytest.mark.slow),
        (0, 15, State.DONE),
    ],
)
def test_a_command_that_is_told_to_stop_and_exits_with_0_is_done_only_at_its_last_step(
    results: Path, grid: Ask, first: int, steps: int | None, state: State
) -> None:
    grid(
        shell("trap 'exit 0' TERM; " + says(first, err=1.0) + says(14, err=1.0) + "while :; do sleep 0.05; done"),
        **({"steps": steps} if steps else {}),
    )
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: '"step": 14' in run.attempt(1).log_text(), "its last step")
    ettsweep("cancel", run.id, "--results", results)
    wait_for(lambda: run.status().state is state, "its end")


@pytest.mark.slow
def test_a_stopped_program_and_a_stopped_worker_are_cancelled(results: Path, grid: Ask) -> None:
    grid(shell("trap 'echo saved > {out}/saved; exit 0' TERM; " + says(1, err=1.0) + "while :; do sleep 0.05; done"))
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.attempt(1).log_text().endswith("}\n"), "its first step")
    for pid in (*processes_of(run), worker_pids(results)[0]):
        os.kill(pid, signal.SIGSTOP)
    ettsweep("cancel", run.id, "--results", results)
    wait_for(lambda: run.status().state is State.CANCELLED, "its end")
    assert (run.path / "out" / "saved").exists()
    assert not processes_of(run)


# --- slots ------------------------------------------------------------------------------------------------------------


# --- how runs end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no luck >&2; exit 3", "exit code 3: no luck"),
        pytest.param("echo step; exit 134", "exit code 134, SIGABRT: step", marks=pytest.mark.slow),
        pytest.param("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried'; exit 1", "out of GPU memory (exit code 1)", marks=pytest.mark.slow),
        (says(1, loss=2.0, other=1.0), "the run recorded no err, but loss, other"),
    ],
)  # fmt: skip
def test_a_failure_says_why(results: Path, grid: Ask, script: str, reason: str) -> None:
    grid(shell(script))
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.status().state is State.FAILED, "its failure")
    assert run.status().reason.startswith(reason)
    assert not processes_of(run)


def test_a_command_that_cannot_resume_is_told_which_job_would_be_long_enough(results: Path, grid: Ask) -> None:
    grid(shell("sleep 600"), "--dry-run")
    spec = load_sweep_spec(results.parent / "sweep.yaml", [], []).bound().specs()[0]
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


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(results: Path, grid: Ask) -> None:
    grid(shell(says(1, loss=1.0) + says(2, loss=float("nan")) + "sleep 600"))
    result = result_of(only_run(results))
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", 2, None)
    assert not processes_of(only_run(results))


def test_exit_code_75_asks_to_be_taken_up_again(results: Path, grid: Ask) -> None:
    script = f"if [ $ETTSWEEP_ATTEMPT = 3 ]; then {says(3, err=0.5)} exit 0; fi; {says(1, loss=1.0)} exit 75"
    grid(shell(script))
    assert result_of(only_run(results))["attempts"] == 3


@pytest.mark.slow
def test_a_stop_in_the_evaluation_after_the_last_step_is_no_end(results: Path, grid: Ask) -> None:
    script = "if [ $ETTSWEEP_ATTEMPT = 1 ]; then " + says(9, loss=1.0, err=9.0) + "sleep 600; fi; " + says(9, err=0.5)
    grid(shell(script), steps=9, score=SCORE | {"take": "last"})
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: '"err"' in run.attempt(1).log_text().partition("starts")[2].partition("\n")[2], "its last step")
    os.kill(worker_pids(results)[0], signal.SIGTERM)
    wait_for(lambda: run.status().state is State.INTERRUPTED, "its end")
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["score"] == 0.5


@pytest.mark.slow
def test_half_a_line_at_a_stop_is_no_metric_and_no_failure(results: Path, grid: Ask) -> None:
    reader = r"step (?P<step>\d+) err (?P<err>[\d.]+)"
    script = (
        "if [ $ETTSWEEP_ATTEMPT = 2 ]; then echo step 2 err 7.5; exit; fi; printf 'step 1 err 5.0\\nstep 2 err 3.'; "
    )
    grid(shell(script + "sleep 600"), reader=reader, steps=2)
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: run.attempt(1).log_text().endswith("err 3.\n"), "half a line")
    os.kill(worker_pids(results)[0], signal.SIGTERM)
    wait_for(lambda: run.status().state is State.INTERRUPTED, "its end")
    assert [line["err"] for line in run.attempt(1).history(every_step=False)] == [5.0]
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["score"] == 7.5


@pytest.mark.slow
def test_an_attempt_that_ends_before_its_first_metric_loses_none_of_those_before(results: Path, grid: Ask) -> None:
    ends = "case $ETTSWEEP_ATTEMPT in 1) " + says(1, err=0.1) + says(2, err=2.0) + "kill -9 $$;; 2) kill -9 $$;; esac; "
    grid(shell(ends + says(3, err=3.0)), resume={"always": "auto"})
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    assert result_of(run)["score"] == 0.1
    assert run.attempt(3).resumed_from()[1] == 2
    assert [line["step"] for line in run.history()] == [1, 2, 3]


@pytest.mark.slow
def test_a_score_follows_the_order_of_steps_whatever_the_order_of_lines(results: Path, grid: Ask) -> None:
    """Of a step that comes twice, the later value counts."""
    lines = says(9, err=2.0) + says(2, err=7.0) + says(5, err=1.0) + says(2, err=3.0)
    grid(shell(lines), score=SCORE | {"take": "last"})
    run = only_run(results)
    assert result_of(run)["score"] == 2.0
    assert run.history() == [{"step": 2, "err": 3.0}, {"step": 5, "err": 1.0}, {"step": 9, "err": 2.0}]


# --- what a command is given ------------------------------------------------------------------------------------------


def test_a_command_sees_its_run_in_its_environment_and_no_tasks_of_slurm(
    results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_JOB_NAME", "ours")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1234")
    grid(shell("env > {out}/env; " + says(1, err=1.0)), env={"MINE": "{lr*2}", "FLAG": 1})
    run = only_run(results)
    result_of(run)
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


def test_a_file_is_written_for_each_run(tmp_path: Path, results: Path, grid: Ask) -> None:
    (tmp_path / "conf.yaml").write_text("optim: {lr: 1.0, wd: 0.1}\nseed: 0\n")
    files = {"{out}/conf.yaml": {"from": "conf.yaml", "set": {"optim.lr": "{lr}", "seed": "{seed}"}}}
    grid(["sh", "-c", f"cat {{out}}/conf.yaml; {says(1, err=1.0)}"], files=files, seeds=2)
    for seed, run in enumerate(sorted(runs_in(results), key=lambda run: run.spec().seed)):
        result_of(run)
        assert yaml.safe_load((run.path / "out" / "conf.yaml").read_text()) == {
            "optim": {"lr": 0.25, "wd": 0.1},
            "seed": seed,
        }


@pytest.mark.slow
def test_metrics_beyond_fifty_names_are_left_out_and_the_score_never(results: Path, grid: Ask) -> None:
    many = {f"norm_{number}": 1.0 for number in range(60)}
    grid(shell(says(1, **many) + says(2, err=1.0, norm_0=2.0)), metrics=["*"])
    run = only_run(results)
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


# --- what a run is ----------------------------------------------------------------------------------------------------


def test_what_changes_the_numbers_is_part_of_the_id_and_nothing_else(tmp_path: Path, results: Path, grid: Ask) -> None:
    def run_id(command: str = walk(), **block: Any) -> str:
        return str(json.loads(grid(command, "--dry-run", "--format", "json", **block).stdout)[0]["run"])

    (tmp_path / "data.bin").write_bytes(b"\0bc")
    first = run_id()
    assert run_id(resume=RESUME, stop={"grace": "1min"}, steps=60, ends_early=True, metrics=["norm"]) == first
    assert run_id(walk("--steps 50")) != first
    assert run_id(env={"A": "1"}) != first
    with_data = run_id(data=["data.bin"])
    assert with_data != first
    (tmp_path / "data.bin").write_bytes(b"\0bd")
    assert run_id(data=["data.bin"]) != with_data
    large = bytearray(3 * 2**20)
    (tmp_path / "data.bin").write_bytes(large)
    sampled, full = run_id(data=["data.bin"]), run_id(data={"paths": "data.bin", "digest": "full"})
    large[len(large) // 2] = 1
    (tmp_path / "data.bin").write_bytes(large)
    assert run_id(data=["data.bin"]) == sampled != full
    changed = run_id(data={"paths": "data.bin", "digest": "full"})
    assert changed not in (sampled, full)
    status = (tmp_path / "data.bin").stat()
    with (tmp_path / "data.bin").open("r+b") as file:  # as by a copy in place that sets its times back
        file.write(b"abc")
    os.utime(tmp_path / "data.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run_id(data={"paths": "data.bin", "digest": "full"}) != changed
    assert run_id(walk(), workdir=".") == first
    (tmp_path / "walk.py").write_text(WALK.replace("3.0, 1", "3.5, 1"))
    assert run_id() != first


@pytest.mark.slow
def test_seeds_that_make_no_difference_are_told(results: Path, grid: Ask) -> None:
    grid(["sh", "-c", f": {{seed}}; {says(1, err='LR')}".replace('"LR"', "{lr}")], "--follow", runs=3, seeds=2)
    judged = ettsweep("verify-optimum", "--dry-run", "--results", results, code=None)
    assert "points have identical scores: does training use its seed?" in judged.stderr


@pytest.mark.slow
def test_packages_that_runs_of_one_verdict_differ_in_are_named_with_it(
    tmp_path: Path, results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the interpreter that the command is started by, not of ettsweep's."""
    for name, version in (("old", "2.8.0"), ("new", "2.9.0")):
        bin_folder, site = tmp_path / name / "bin", tmp_path / name / "lib/python3.12/site-packages"
        bin_folder.mkdir(parents=True)
        (bin_folder / "python").symlink_to(sys.executable)
        for each in (f"torch-{version}", "Flash_Attn-2.7", f"pip-{version}"):
            (site / f"{each}.dist-info").mkdir(parents=True)
    program = "import json; print('[ettsweep]', json.dumps(dict(step=1, err=1.0 + {lr} + {seed} / 100)))"
    command = ["python", "-c", program]
    path = os.environ["PATH"]
    for name, seeds in (("old", "0"), ("new", "0,1")):
        monkeypatch.setenv("PATH", f"{tmp_path / name / 'bin'}:{path}")
        grid(command, "--follow", "--seeds", seeds, runs=2)
    judged = ettsweep("verify-optimum", "--dry-run", "--results", results, code=None)
    assert "its runs differ in torch (2 with 2.8.0, 2 with 2.9.0), which may change scores" in judged.stderr


@pytest.mark.slow
def test_runs_that_end_elsewhere_and_scores_of_too_few_digits_are_told_with_the_verdict(
    results: Path, grid: Ask
) -> None:
    program = """import json, sys
lr, seed = map(float, sys.argv[1:])
for step in range(1, 2 if lr == 0.5 else 3):
    print("[ettsweep]", json.dumps(dict(step=step, err=round(lr / 3 + seed / 70, 2))))
"""
    grid([sys.executable, "-c", program, "{lr}", "{seed}"], "--follow", runs=3, seeds=2)
    judged = ettsweep("verify-optimum", "--dry-run", "--margin", "5%", "--results", results, code=None)
    told = "scores come in steps of 0.01, which is above a tenth of the margin, 0.0045: print more digits"
    assert told in judged.stderr
    assert "most runs ended at step 2, but 2 of 4 did not" in judged.stderr


@pytest.mark.parametrize(
    ("recorded", "steps", "ends"),
    [
        ([12, 13, 14], 40, 14),
        ([38, 39], 40, None),  # counted from 0
        ([37, 38], 40, 38),
        ([30, 60, 90], 100, None),  # every 30 steps, and not at the end
        ([970, 980, 990, 993], 1000, None),  # the loss every 10 steps, the score every 331
        ([0], 1, None),
        ([0], 2, 0),
        ([], 40, 0),
        ([41], 40, None),
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


@pytest.mark.slow
def test_runs_that_end_early_fail_and_are_kept_once_they_may(results: Path, grid: Ask) -> None:
    ends = shell("".join(says(step, err=1.0) for step in (7, 8, 9)))
    grid(ends, "--follow", steps=40, code=1)
    run = only_run(results)
    assert run.status().reason.startswith("ended at step 9 of 40; ")
    grid(ends, steps=40, ends_early=True, code=None)
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["steps"] == 9


# --- what it leaves behind --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_outputs_go_but_those_that_are_kept_and_those_of_the_best_point(results: Path, grid: Ask) -> None:
    script = "cd {out}; mkdir -p states/last; touch states/a states/last/b best.pt log.txt; ln -s / link; "
    script += """echo '[ettsweep] {{"step": 1, "err":' $1 '}}'"""
    command = ["bash", "-c", script, "run", "{lr}", "{seed}"]
    grid(command, "--follow", runs=3, seeds=2, keep=["best.pt", "log*"])
    with_outputs = {run.id: {path.name for path in (run.path / "out").rglob("*")} for run in runs_in(results)}
    assert all(names == {"states", "a", "last", "b", "best.pt", "log.txt", "link"} for names in with_outputs.values())
    best = {run.id for run in runs_in(results) if run.spec().lr == 0.25}
    listed = ettsweep("clean", "--outputs", "--dry-run", "--format", "json", "--results", results).stdout
    reasons = [row["path"] for row in json.loads(listed) if row["reason"] == "output of a finished run"]
    others = [run for run in runs_in(results) if run.id not in best]
    assert sorted(reasons) == sorted(str(run.path / "out" / name) for run in others for name in ("states", "link"))
    ettsweep("clean", "--outputs", "--yes", "--results", results)
    for run in runs_in(results):
        left = {path.name for path in (run.path / "out").rglob("*")}
        assert left == (with_outputs[run.id] if run.id in best else {"best.pt", "log.txt"})
        assert run.result()


@pytest.mark.slow
def test_the_middle_of_a_long_output_is_left_out_and_its_metrics_are_not(results: Path, grid: Ask) -> None:
    line = "x" * 1023
    flood = f"for i in $(seq 7000); do echo {line}; done; "
    grid(shell(f"echo begin; {flood}{says(1, err=2.0)}{flood}{says(2, err=1.0)}echo end"), "--follow")
    run = only_run(results)
    assert run.history() == [{"step": 1, "err": 2.0}, {"step": 2, "err": 1.0}]
    output = run.attempt(1).output_path.read_text()
    assert (output.startswith("begin\n"), output.endswith("end\n")) == (True, True)
    assert "MiB left out here]" in output
    assert 11 * 2**20 < len(output) < 11.1 * 2**20


@pytest.mark.parametrize(
    ("told", "address"),
    [("192.0.2.7", "192.0.2.7"), ("127.0.0.1", "n1"), ("", "n1")],
)
def test_nodes_meet_where_srun_is_reached_else_at_the_first_nodes_name(
    monkeypatch: pytest.MonkeyPatch, told: str, address: str
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", told)
    assert _leader_host("n1") == address
