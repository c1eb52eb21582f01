"""A search whose grid has a first look: what is looked at, where the whole one starts, what outlives a kill."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import LONG, Call, Done, ended, finish, keep, runs_in, start, wait_for, write_grid
from support.forks import Forks, warm_workers

from ettsweep.launch.cost import device_hours
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State
from ettsweep.spec import RunSpec
from ettsweep.sweep.changes import extend
from ettsweep.sweep.firstlook import first_look
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.search import Request
from ettsweep.sweep.sweeps import load_sweeps

CENTRE = 0.0625
WIDE: dict[str, Any] = {
    "centre": {"standard": {"lr": CENTRE, "wd": 0.25}},
    "lr": {"range": [-4, 4]},
    "criterion": {"margin": "20%"},
    "first_look": {"model": {"width": 4}, "schedule": {"total_steps": 16}},
}
"""A grid file of the small model, and a narrower one that trains two thirds of the steps; wd is fixed."""

PROPOSED = re.compile(r"^(\S+) (\w+): \w+ proposes (.*)$", re.MULTILINE)
STARTS = re.compile(
    r"^w8 standard starts from the best of (\d+) points? \((.*?)\) at first look, \((\S+), \S+\) of standard at width 4 "
    r"of sweep w8-look, mapped to \((\S+), (\S+)\), nearest \((\S+), \S+\)$",
    re.MULTILINE,
)


def proposed(results: Path, sweep: str) -> list[float]:
    """Return the lr that were proposed, first to last, as files have them."""
    entries = [yaml.safe_load(path.read_text()) for path in sorted((results / "sweeps" / sweep).glob("*.yaml"))]
    return [point["lr"] for entry in entries for one in entry.get("proposed") or () for point in one["points"]]


def of_width(results: Path, width: int) -> list[RunDir]:
    """Return the runs of a width; one that is being made is none yet."""
    return [run for run in runs_in(results) if run.spec_path.exists() and run.spec().model.width == width]


def files(results: Path) -> set[Path]:
    return set((results / "sweeps").rglob("*.yaml"))


def asked(path: Path, **options: Any) -> Request:
    """Return what `search` asks for of a grid file."""
    return load_request(path, **options).model_copy(update={"searched": True})


def wait_for_runs(results: Path) -> None:
    wait_for(lambda: all(run.status().state.finished for run in runs_in(results)), "all runs")


# --- from a first look to a verdict -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("sampler", ["surface", "tpe"])
def test_the_whole_search_starts_from_the_best_of_a_first_look_and_keeps_to_its_region(
    call: Call, results: Path, forks: Forks, tmp_path: Path, sampler: str
) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("search", "--grid", "w8.yaml", "--sampler", sampler, "--trials", 5, "--max-runs", 60)
    command += ("--launch-set", "slots=1", "--results", results, "--format", "json")
    with warm_workers(forks):
        done = call(*command)
        ids, kept = {run.id for run in runs_in(results)}, files(results)
        again = call(*command)

    sweeps, looks, whole = load_sweeps(results), of_width(results, 4), of_width(results, 8)
    assert {name: sweep.archived for name, sweep in sweeps.named.items()} == {"w8": False, "w8-look": True}
    assert sorted(run.spec().lr for run in looks) == sorted(proposed(results, "w8-look")), "and nothing for a verdict"
    assert {run.spec().schedule.total_steps for run in looks} == {16}
    assert {run.spec().schedule.total_steps for run in whole} == {24}
    assert not {run.spec().family_id for run in looks} & {run.spec().family_id for run in whole}

    best = min(looks, key=lambda run: run.result()["score"]).spec()  # type: ignore[index]
    lr, wd = best.lr * 4 / 8, best.wd * 8 / 4
    ((points, cost, there, mapped, wd_mapped, nearest),) = STARTS.findall(done.err)
    assert int(points) == len(looks)
    assert cost == device_hours(sum(run.result()["device_s"] for run in looks))  # type: ignore[index]
    assert [there, mapped, wd_mapped, nearest] == [f"2^{math.log2(x):g}" for x in (best.lr, lr, wd, lr)]
    found = proposed(results, "w8")
    assert found[0] == lr
    assert len(set(found)) == len(found) <= 5
    assert all(max(lr / 4, CENTRE / 16) <= one <= min(lr * 4, CENTRE * 16) for one in found)
    names = [name for name, _, _ in PROPOSED.findall(done.err)]
    assert names == sorted(names, reverse=True), "first the look, then the whole"

    (verdict,) = done.json
    assert (verdict["sweep"], verdict["verdict"], verdict["wd"]) == ("w8", "optimal", 0.25)
    judged = {run for version in verdict["versions"] for run in version["runs"]}
    assert judged <= {run.id for run in whole}
    assert ({run.id for run in runs_in(results)}, files(results)) == (ids, kept), "asked again, it does nothing"
    assert again.json == done.json
    assert not PROPOSED.search(again.err)
    assert "first look" not in again.err

    report = call("report", "--results", results, "--out", tmp_path / "report")
    spent = [device_hours(sum(run.result()["device_s"] for run in runs)) for runs in (whole, looks)]  # type: ignore[index]
    told = f"{len(whole)} finished runs: {spent[0]}, and {len(looks)} runs at first look: {spent[1]}"
    assert told in report.err
    assert told in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.usefixtures("process")
def test_both_share_one_budget(call: Call, results: Path, forks: Forks, tmp_path: Path) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("search", "--grid", "w8.yaml", "--sampler", "random", "--trials", 2, "--results", results)
    with warm_workers(forks):
        done = call(*command, "--max-runs", 3, "--launch-set", "slots=1", code=1)
        assert (len(of_width(results, 4)), len(of_width(results, 8))) == (2, 1)
        call(*command, "--name", "w8-2", "--set", "first_look.model.width=6", "--max-runs", 1, code=1)
    assert (len(of_width(results, 6)), len(of_width(results, 8))) == (1, 1)
    assert proposed(results, "w8-2") == []
    assert "the search is not over: --max-runs 3 allows no further point" in done.err


@pytest.mark.usefixtures("process", "warm")
def test_both_share_the_hours_too(call: Call, results: Path, tmp_path: Path) -> None:
    """How long the first run takes is known after it; it is that of the first look."""
    write_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("search", "--grid", "w8.yaml", "--max-hours", 1e-9, "--launch-set", "slots=1", "--results", results)
    done = call(*command, code=1)
    assert (len(of_width(results, 4)), len(of_width(results, 8))) == (1, 0)
    assert "the search is not over: --max-hours 1e-09 allows no further point" in done.err


@pytest.mark.usefixtures("process")
def test_where_all_of_a_first_look_diverged_the_search_starts_at_its_centre_and_says_so(
    call: Call, results: Path, forks: Forks, tmp_path: Path
) -> None:
    centre = {"standard": {"lr": 1e20, "wd": 0.25}}
    write_grid(tmp_path / "w8.yaml", **WIDE | {"centre": centre, "lr": {"range": [0, 1]}})
    with warm_workers(forks):
        command = ("search", "--grid", "w8.yaml", "--max-runs", 3, "--launch-set", "slots=1", "--results", results)
        done = call(*command, code=1)
    assert {run.status().state for run in of_width(results, 4)} == {State.DIVERGED}
    assert "w8 standard starts at its centre: nothing at first look has a score\n" in done.err
    assert "starts from" not in done.err
    assert proposed(results, "w8") == [1e20]


# --- in parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
def test_a_search_goes_on_after_its_command_is_killed_during_the_first_look_and_after_it(
    results: Path, tmp_path: Path
) -> None:
    """Each time its worker lives on; what was proposed is run once, and the region is that of the first start."""
    changes = {"lr": {"range": [-8, 8]}, "criterion": {"margin": "0.1%"}, "recipe": LONG}
    look = {"model": {"width": 4}, "schedule": {"total_steps": 400}}
    write_grid(tmp_path / "w8.yaml", **WIDE | changes | {"first_look": look})
    how = ("--launch-set", "slots=1", "--launch-set", "threads=1", "--max-runs", 4, "--trials", 3)
    follow = ("search", "--grid", "w8.yaml", "--sampler", "random", *how, "--results", results)
    before: dict[str, list[float]] = {}
    for width in (4, 8):
        command = start(*follow, cwd=tmp_path)
        wait_for(lambda width=width: any(run.numbers() for run in of_width(results, width)), "the first of its runs")
        command.kill()
        command.communicate()
        before = {name: proposed(results, name) for name in ("w8-look", "w8")}
        assert (len(before["w8"]) > 0) is (width == 8)
    done = ended(start(*follow, cwd=tmp_path), 1)
    assert "first look" not in done.stderr, "it is over"
    after = {name: proposed(results, name) for name in before}
    assert after["w8-look"] == before["w8-look"]
    assert after["w8"][: len(before["w8"])] == before["w8"]
    assert [len(set(found)) for found in after.values()] == [3, 3]
    assert {(tuple(run.numbers()), run.status().state) for run in runs_in(results)} == {((1,), State.DONE)}
    assert {run.spec().lr for run in of_width(results, 4)} == set(after["w8-look"])
    assert max(after["w8"]) <= 4 * after["w8"][0]
    assert min(after["w8"]) >= after["w8"][0] / 4


@pytest.mark.usefixtures("process")
def test_without_following_the_first_look_is_submitted_and_the_next_calls_go_on(
    call: Call, results: Path, forks: Forks, tmp_path: Path
) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("search", "--grid", "w8.yaml", "--no-follow", "--sampler", "random", "--trials", 2)
    command += ("--launch-set", "slots=1", "--results", results)
    told: list[Done] = []
    with warm_workers(forks):
        for _ in range(4):
            told.append(call(*command, code=1))
            wait_for_runs(results)
    waits = "the first look comes first; the same command again goes on from it\n"
    assert [waits in done.err for done in told] == [True, True, False, False]
    assert "1 run submitted" in told[0].err
    assert [len(proposed(results, name)) for name in ("w8-look", "w8")] == [2, 2]
    assert ["w8 standard starts from" in done.err for done in told] == [False, False, True, False]


def test_a_dry_run_keeps_nothing(call: Call, results: Path, tmp_path: Path) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    told = call("search", "--grid", "w8.yaml", "--dry-run", "--results", results, "--format", "json", code=1)
    assert [(row["sweep"], row["lr"], row["wd"]) for row in told.json] == [("w8-look", CENTRE * 8 / 4, 0.125)]
    assert "1 run would be submitted" in told.err
    assert not results.exists()


def test_a_dry_run_after_the_first_look_goes_on_from_it(call: Call, results: Path, tmp_path: Path) -> None:
    request = asked(write_grid(tmp_path / "w8.yaml", **WIDE))
    (search,) = first_look(request, ["standard"]).searches()
    for offset in range(-4, 5):
        finish(results, search.run(lr=search.base.lr * 2.0**offset), 1 + abs(offset - 3))
    told = call("search", "--grid", "w8.yaml", "--dry-run", "--results", results, code=1)
    assert "of 9 points (0.09 device hours) at first look" in told.err
    assert PROPOSED.findall(told.err)[-1] == ("w8", "standard", f"(2^{math.log2(CENTRE * 8):g}, 2^-2)")
    assert load_sweeps(results).named == {}


# --- which first look -------------------------------------------------------------------------------------------------


@pytest.fixture
def verified(results: Path, tmp_path: Path) -> Callable[..., list[RunSpec]]:
    """Return a function that has a sweep of the small model verified under `standard`, with made scores: best at 2^-2."""

    def made(name: str = "w8") -> list[RunSpec]:
        changes = {"centre": {"standard": {"lr": 0.25, "wd": 0.25}}, "lr": {"range": [-1, 1]}, "seeds": [0, 1, 2]}
        path = write_grid(tmp_path / f"{name}.yaml", **WIDE | {"criterion": {}} | changes)
        keep(results, request := load_request(path))
        for spec in request.specs():
            finish(results, spec, 1 + abs(spec.lr - 0.25) + 0.01 * ((spec.seed + round(8 * spec.lr)) % 3))
        return request.specs()

    return made


@pytest.mark.parametrize(
    "options", ["--strategy ntk", "--strategy ntk --from standard", "--strategy ntk --strategy mup"]
)
def test_what_starts_from_a_verified_optimum_needs_no_first_look(
    call: Call, results: Path, verified: Callable[..., list[RunSpec]], options: str
) -> None:
    verified()
    told = call("search", "--grid", "w8.yaml", *options.split(), "--dry-run", "--results", results, code=None)
    assert "first look" not in told.err
    names = re.findall("--strategy (\\w+)", options)
    assert [(sweep, name) for sweep, name, _ in PROPOSED.findall(told.err)] == [("w8", name) for name in names]
    assert told.err.count("starts from the optimum (2^-2, 2^-2) of standard") == len(names)


def test_a_sweep_that_starts_from_another_needs_no_first_look(
    call: Call, results: Path, verified: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    (first, *_) = verified()
    model = first.model.model_dump() | {"width": 16, "heads": 4}
    write_grid(tmp_path / "w16.yaml", **WIDE | {"model": model})
    command = ("search", "--grid", "w16.yaml", "--dry-run", "--results", results)
    assert [sweep for sweep, _, _ in PROPOSED.findall(call(*command, "--from", "w8", code=None).err)] == ["w16"]
    assert [sweep for sweep, _, _ in PROPOSED.findall(call(*command, code=None).err)] == ["w16-look"]


def test_strategies_without_a_verified_optimum_are_looked_at_together(
    call: Call, results: Path, tmp_path: Path
) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    strategies = ("--strategy", "standard", "--strategy", "ntk")
    told = call("search", "--grid", "w8.yaml", *strategies, "--dry-run", "--results", results, code=1)
    assert [found[:2] for found in PROPOSED.findall(told.err)] == [("w8-look", "standard"), ("w8-look", "ntk")]


def test_a_sweep_that_is_there_has_the_first_look_of_its_file(call: Call, results: Path, tmp_path: Path) -> None:
    keep(results, load_request(write_grid(tmp_path / "w8.yaml", **WIDE)))
    (tmp_path / "w8.yaml").unlink()
    told = call("search", "--sweep", "w8", "--dry-run", "--results", results, code=1)
    assert [sweep for sweep, _, _ in PROPOSED.findall(told.err)] == ["w8-look"]


@pytest.mark.usefixtures("process", "warm")
def test_another_first_look_gets_a_sweep_of_its_own(call: Call, results: Path, tmp_path: Path) -> None:
    request = asked(write_grid(tmp_path / "w8.yaml", **WIDE))
    extend(results, "w8", request)
    extend(results, "w8-look", first_look(request, ["standard"]), archived=True)
    command = ("search", "--grid", "w8.yaml", "--no-follow", "--launch-set", "slots=1", "--results", results)
    call(*command, "--set", "first_look.schedule.total_steps=8", code=1)
    sweeps = load_sweeps(results)
    assert {name: sweep.archived for name, sweep in sweeps.named.items()} == {
        "w8": False,
        "w8-look": True,
        "w8-look-2": True,
    }
    assert [run.spec().schedule.total_steps for run in runs_in(results)] == [8]
    assert sweeps.named["w8"].requests[-1].first_look == sweeps.named["w8-look-2"].requests[0].recipe


@pytest.mark.usefixtures("process", "warm")
def test_a_long_name_has_a_first_look_too(call: Call, results: Path, tmp_path: Path) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    name = "w" * 64
    call("search", "--grid", "w8.yaml", "--name", name, "--no-follow", "--results", results, code=1)
    assert load_sweeps(results).named.keys() == {name, "w" * 52 + "-look"}


# --- commands that have none ------------------------------------------------------------------------------------------


def test_a_grid_is_asked_for_without_its_first_look(call: Call, results: Path, tmp_path: Path) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("grid", "--grid", "w8.yaml", "--dry-run", "--results", results, "--format", "json")
    plain = json.loads(call(*command, "--set", "first_look=null").out)
    assert [row["lr"] for row in plain] == [CENTRE * 2.0**k for k in range(-4, 5)]
    assert json.loads(call(*command).out) == plain


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--set first_look.model.width=5", "first_look: model: width 5 is not divisible by heads 2; nearest width: 4,"),
        ("--set first_look=3", "first_look: a mapping of keys to values is expected, got 3"),
        ("--pruner median --set first_look.schedule.eval_every=16", "schedule.eval_every: 16: --pruner median"),
    ],
)
def test_a_first_look_that_cannot_be_searched_is_refused(
    call: Call, results: Path, tmp_path: Path, options: str, told: str
) -> None:
    write_grid(tmp_path / "w8.yaml", **WIDE)
    assert told in call("search", "--grid", "w8.yaml", *options.split(), "--results", results, code=2).err
    assert not results.exists()
