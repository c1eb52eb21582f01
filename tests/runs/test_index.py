from collections.abc import Callable
from pathlib import Path

import pytest
from support.audit import audited
from support.claims import StubLiveness

from ettsweep.errors import InputError
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import find_run_id, load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State

MakeSpec = Callable[..., RunSpec]


def start(results: Path, spec: RunSpec) -> Attempt:
    """Return a first attempt that this process owns."""
    attempt = RunDir.create(results, spec).claim({"slot": "cpu-0"}, after=0)
    assert attempt is not None
    return attempt


def finish(results: Path, spec: RunSpec, score: float | None) -> RunDir:
    attempt = start(results, spec)
    status = {"status": "diverged", "diverged_step": 3} if score is None else {"status": "done"}
    assert RunDir(attempt.run).finish({**status, "score": score}, [])
    return RunDir(attempt.run)


def test_each_run_is_found_with_its_state_and_score(results: Path, make_spec: MakeSpec) -> None:
    result, diverged, running, failed, queued, missing = (make_spec(seed=seed) for seed in range(6))
    finish(results, result, 0.25)
    finish(results, diverged, None)
    start(results, running)
    start(results, failed).record_failure("error", "ValueError: bad")
    for spec in (queued, missing):
        RunDir.create(results, spec)
    run_index = load_run_index(results, StubLiveness(queued.run_id))
    states = [State.DONE, State.DIVERGED, State.RUNNING, State.FAILED, State.QUEUED, State.MISSING]
    assert {run.seed: run.state for run in run_index.runs.values()} == dict(enumerate(states))
    assert run_index.runs[result.run_id].score == 0.25
    assert run_index.runs[failed.run_id].status.reason == "ValueError: bad"
    assert run_index.status_of("0" * 12).state is State.MISSING


def test_each_file_of_a_finished_run_is_opened_once(results: Path, make_spec: MakeSpec) -> None:
    runs = [finish(results, make_spec(seed=seed), score) for seed, score in enumerate((0.25, None))]
    # Numbers are descriptors, of files that were opened by name.
    opened = [path for path in audited("open", lambda: load_run_index(results)) if not path.isdigit()]
    assert sorted(opened) == sorted(str(path) for run in runs for path in (run.spec_path, run.result_path))


@pytest.mark.parametrize("content", ["{", "another seed"])
def test_a_broken_folder_is_told_apart_and_waits_to_be_written_anew(
    results: Path, make_spec: MakeSpec, content: str
) -> None:
    # The sound one is read first: what is known of it tells nothing about the other.
    sound, broken = sorted((make_spec(seed=seed) for seed in (1, 11)), key=lambda spec: spec.run_id)
    for spec in (sound, broken):
        RunDir.create(results, spec)
    path = RunDir(results / "runs" / broken.run_id).spec_path
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2') if content == "another seed" else content)
    run_index = load_run_index(results)
    assert list(run_index.runs) == [sound.run_id]
    assert list(run_index.broken) == [broken.run_id]
    assert run_index.status_of(broken.run_id).state is State.INTERRUPTED
    assert "repeat the command that requested the run, which rewrites it" in run_index.broken[broken.run_id]


def test_what_is_no_run_folder_is_passed_over(results: Path, spec: RunSpec) -> None:
    RunDir.create(results, spec)
    for name in ("notes", "ABCDEF012345", "..", f"{spec.run_id}x"):
        (results / "runs" / name).mkdir(exist_ok=True)
    (results / "runs" / "README").touch()
    run_index = load_run_index(results)
    assert (list(run_index.runs), run_index.broken) == ([spec.run_id], {})


def test_a_family_is_all_runs_that_differ_in_lr_wd_and_seed_only(results: Path, make_spec: MakeSpec) -> None:
    family = [make_spec(), make_spec(lr=2.0), make_spec(wd=0.5), make_spec(seed=1)]
    other = make_spec(model={"width": 16})
    for spec in (*family, other):
        RunDir.create(results, spec)
    runs = load_run_index(results).family_runs(family[0])
    assert {run.id for run in runs} == {spec.run_id for spec in family}


def test_a_run_is_found_by_the_start_of_its_id(results: Path, make_spec: MakeSpec) -> None:
    ids = [RunDir.create(results, make_spec(seed=seed)).id for seed in range(40)]  # two of 40 share a first digit
    run_index = load_run_index(results)
    assert find_run_id(run_index, ids[0]) == ids[0]
    RunDir(results / "runs" / ids[0]).spec_path.write_text("{")
    assert find_run_id(load_run_index(results), ids[0]) == ids[0], "broken ones too"
    shared = next(d for d in "0123456789abcdef" if sum(i.startswith(d) for i in ids) > 1)
    with pytest.raises(InputError, match=rf"runs start with '{shared}': {shared}"):
        find_run_id(run_index, shared)
    with pytest.raises(InputError, match="no run starts with 'xyz'; `ettsweep status` lists them"):
        find_run_id(run_index, "xyz")
