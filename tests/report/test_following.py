"""A report that follows the runs: when it is written anew, how often, and how it ends."""

import contextlib
import itertools
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from support import made_sweep
from support.commandline import LONG, ctrl_c_at, ended, ettsweep, finish, keep, start, wait_for, write_grid
from support.made_sweep import digits_spec

from ettsweep.errors import StorageError
from ettsweep.launch.monitor import LOOK_SHARE, Monitor
from ettsweep.report.edition import conclude, publish
from ettsweep.report.following import Editions, follow_runs
from ettsweep.runs.folder import RunDir, runs_dir, sweeps_dir
from ettsweep.sweep.changes import followed, followers
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.ledger import Run, load_ledger


def edition(page: Path) -> str:
    """Return the edition that a page says it is; empty where it is rewritten no more, or not there yet."""
    found = re.search('<html lang="en" data-live="([0-9a-f]+)"', page.read_text()) if page.exists() else None
    return found[1] if found else ""


class Reports:
    """Counts what is written, and how long that takes."""

    def __init__(self, results: Path, takes_s: float = 0.0) -> None:
        self.results, self.takes_s = results, takes_s
        self.names: list[str] = []

    def __call__(self, name: str) -> Sequence[Run]:
        self.names.append(name)
        time.sleep(self.takes_s)
        return list(load_ledger(self.results).runs.values())


def test_the_next_edition_is_written_when_something_has_changed(results: Path) -> None:
    base = digits_spec(None)
    first, second, third = (base.at(base.lr, base.wd, seed) for seed in (0, 1, 2))
    made_sweep.finish(results, first, 0.1)
    RunDir.create(results, second)
    write, monitor = Reports(results), Monitor(results)
    editions = Editions(results, write, monitor)

    def written(number: int, why: str) -> None:
        wait_for(lambda: editions.look(monitor.look()) or len(write.names) == number, why)
        began_s = time.monotonic()
        while time.monotonic() < began_s + 1:  # longer than any rest
            editions.look(monitor.look())
        assert len(set(write.names)) == number, "nothing else has changed; each edition has a name of its own"

    written(1, "the first")
    made_sweep.finish(results, second, 0.1)
    written(2, "a run has finished")
    RunDir.create(results, third)
    written(3, "a run was asked for")
    (sweeps_dir(results) / "w").mkdir(parents=True)
    (sweeps_dir(results) / "w" / "0001.yaml").write_text("note: why\n")
    written(4, "a sweep has changed")
    run = RunDir(runs_dir(results) / third.run_id)
    run.cancel()
    written(5, "a run was cancelled")
    run.retry()
    written(5, "a run is to be trained again: no edition tells it")
    run.cancel()
    written(6, "a run was cancelled once more")


def test_writing_takes_a_bounded_share_of_the_time(results: Path) -> None:
    write, monitor = Reports(results, takes_s=0.05), Monitor(results)
    base, began_s = digits_spec(None), time.monotonic()
    editions = Editions(results, write, monitor)
    for seed in itertools.count():
        RunDir.create(results, base.at(base.lr, base.wd, seed))
        editions.look(monitor.look())
        if len(write.names) == 4:
            break
    spent_s = 4 * write.takes_s
    assert spent_s / (time.monotonic() - began_s + LOOK_SHARE * write.takes_s) <= 1.05 / (1 + LOOK_SHARE)


def test_an_edition_is_told_of_and_the_last_one_too(tmp_path: Path) -> None:
    page = '<!doctype html>\n<html lang="en" data-live="a1">\n<p data-live="a1">'
    assert [path.name for path in publish(tmp_path, page, "a1")] == ["report.html", "latest.js"]
    assert (tmp_path / "latest.js").read_text() == 'window.ettsweepLatest("a1");\n'
    conclude(tmp_path)
    blank = " " * len(' data-live="a1"')
    assert (tmp_path / "report.html").read_text() == f'<!doctype html>\n<html lang="en"{blank}>\n<p data-live="a1">'
    assert (tmp_path / "latest.js").read_text() == 'window.ettsweepLatest("");\n'


def test_a_page_that_nobody_follows_has_nothing_beside_it(tmp_path: Path) -> None:
    assert [path.name for path in publish(tmp_path, "<html>", "")] == ["report.html"]
    conclude(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_followers_of_a_sweep_are_processes_that_live(results: Path) -> None:
    (sweeps_dir(results) / "w").mkdir(parents=True)
    with followed(results, ["w"]):
        (path,) = followers(results, "w")
        assert followers(results, "other") == {}
        path.with_name("follower-dead.json").write_text(path.read_text().replace('"pid": ', '"pid": 9999'))
        assert list(followers(results, "w")) == [path]
    assert followers(results, "w") == {}


def test_the_report_follows_runs_to_their_end(tmp_path: Path, results: Path) -> None:
    request = load_request(write_grid(tmp_path / "w.yaml"))
    keep(results, request)
    specs, page = request.specs(), results / "report" / "report.html"
    finish(results, specs[0], 0.3)
    with followed(results, ["w"]):
        process = start("report", "--follow", "--results", results)
        first = wait_for(lambda: edition(page), "the first edition")
        assert "1 run in" in page.read_text()
        finish(results, specs[1], 0.1)
        second = wait_for(lambda: {edition(page)} - {first}, "the next edition, when a run has finished")
        assert "2 runs in" in page.read_text()
        latest = page.parent / "latest.js"
        wait_for(
            lambda: latest.read_text() != f'window.ettsweepLatest("{first}");\n', "word of it, which comes after it"
        )
        assert process.poll() is None, "a command follows the sweep, whose next round may come"
        finish(results, specs[2], 0.2)
    done = ended(process)
    assert second
    assert edition(page) == ""
    assert "3 runs in" in page.read_text()
    assert "Verified optimum" in page.read_text()
    assert (page.parent / "latest.js").read_text() == 'window.ettsweepLatest("");\n'
    assert "optimal" in done.stdout
    assert f"wrote {page}" in done.stderr


def test_a_command_that_follows_a_sweep_that_came_later_is_waited_for(tmp_path: Path, results: Path) -> None:
    keep(results, (request := load_request(write_grid(tmp_path / "w.yaml"))))
    for spec in request.specs():
        finish(results, spec, 0.3)
    page, later = results / "report" / "report.html", load_request(write_grid(tmp_path / "later.yaml", seeds=[5]))
    with contextlib.ExitStack() as command:
        command.enter_context(followed(results, ["w"]))
        process = start("report", "--follow", "--results", results)
        first = wait_for(lambda: edition(page), "the first edition")
        keep(results, later)
        with followed(results, ["later"]):
            second = wait_for(lambda: edition(page) != first and edition(page), "the edition with the other sweep")
            command.close()
            finish(results, later.specs()[0], 0.1)
            wait_for(lambda: edition(page) not in ("", first, second), "the next edition")
    ended(process)
    assert edition(page) == ""


def test_a_signal_leaves_a_page_that_is_rewritten_no_more(tmp_path: Path, results: Path) -> None:
    keep(results, load_request(write_grid(tmp_path / "w.yaml")))
    page = results / "report" / "report.html"
    with followed(results, ["w"]):
        process = start("report", "--follow", "--results", results)
        wait_for(lambda: edition(page), "the first edition")
        process.send_signal(signal.SIGTERM)
        ended(process, 128 + signal.SIGTERM)
    assert edition(page) == ""
    assert (page.parent / "latest.js").read_text() == 'window.ettsweepLatest("");\n'


def test_a_full_disk_leaves_a_page_that_is_rewritten_no_more(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunDir.create(results, digits_spec(None))
    page = '<!doctype html>\n<html lang="en" data-live="a1">\n'

    def write(name: str) -> Sequence[Run]:
        publish(tmp_path, page, "a1")
        monkeypatch.setattr("ettsweep.report.edition.write_atomic", full)
        full(tmp_path / "report.html")
        return []

    def full(path: Path, *given: object) -> bool:
        raise StorageError(f"{path}: the disk is full")

    with pytest.raises(StorageError, match=r"report.html: the disk is full"):
        follow_runs(results, list, tmp_path, write, Console())
    assert edition(tmp_path / "report.html") == ""


@pytest.fixture
def in_training(tmp_path: Path, results: Path, process: None, warm: None) -> None:
    """Submit runs that take longer than a test looks at them."""
    grid = write_grid(tmp_path / "w.yaml", recipe=LONG | {"schedule": LONG["schedule"] | {"total_steps": 60_000}})
    ettsweep("grid", "--grid", grid, "--results", results)


@pytest.mark.usefixtures("in_training")
def test_ctrl_c_leaves_a_page_that_is_rewritten_no_more(tmp_path: Path, results: Path) -> None:
    process = start("report", "--follow", "--results", results, "--out", tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    wait_for(lambda: edition(page), "the first edition")
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert edition(page) == ""
    assert "detached; the runs go on" in done.stderr
    assert (tmp_path / "out" / "latest.js").read_text() == 'window.ettsweepLatest("");\n'


@pytest.mark.usefixtures("in_training")
def test_ctrl_c_where_following_begins_leaves_no_page_that_waits(tmp_path: Path, results: Path) -> None:
    """What shows the runs is imported once there is a page: Ctrl-C takes effect after that, as anywhere."""
    asked = ("report", "--follow", "--results", results, "--out", tmp_path / "out")
    done = ended(start(*asked, env=ctrl_c_at("rich.live:0")))
    assert edition(tmp_path / "out" / "report.html") == ""
    assert "detached; the runs go on" in done.stderr
