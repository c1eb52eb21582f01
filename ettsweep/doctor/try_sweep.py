"""`ettsweep try`: a trial of a sweep's runs, from its spec to the outcome that is kept with it."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from ettsweep.doctor.observations import conclude
from ettsweep.doctor.trial import Trial
from ettsweep.files import dumps, storage_errors, write_atomic
from ettsweep.launch.folders import check_source
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.project_copy import ensure_copies
from ettsweep.launch.submit import check_resources
from ettsweep.processes import process_identity
from ettsweep.runs.folder import TRIAL_OWNER, TRIAL_PREFIX
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.tried import Outcome, write_outcome


def try_sweep(
    results: Path,
    name: str,
    sweep_spec: SweepSpec,
    launcher: Launcher,
    notify: Callable[[str], None],
    notes: Iterable[str] = (),
) -> tuple[Outcome, Path | None]:
    """Try what trains the runs of a sweep, at the centre of its first strategy, and keep what was seen.

    Args:
        results: the results folder.
        name: of the sweep, which need not exist yet.
        sweep_spec: as the sweep asks for it, with code and data resolved.
        launcher: where its runs train.
        notify: receives a line on what is under way.
        notes: lines that it receives first, once the project is copied.

    Returns:
        What was seen, and the folder with the runs of the trial, which is kept if something failed.

    Raises:
        InputError: a run cannot be trained with the launch profile.
        StorageError: the results folder cannot be written.
    """
    study = sweep_spec.studies(name)[0]
    check_resources([study.base], launcher, results)
    check_source(sweep_spec.recipe, Path(sweep_spec.grid))
    sweep_spec.check_data()
    seeds, kept = [*sweep_spec.seeds, max(sweep_spec.seeds) + 1], None
    with storage_errors(results):  # workers on other machines must see its runs
        results.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=TRIAL_PREFIX, dir=results))
    try:
        write_atomic(folder / TRIAL_OWNER, dumps(process_identity().to_json()))
        ensure_copies(folder, [study.base])
        for note in notes:
            notify(note)
        with _interrupted_by_signals():
            record = Trial(study.base, seeds[1], launcher, sweep_spec.data_paths, folder, notify).run()
        outcome = conclude(record, study.family, len(sweep_spec.specs()), study.criterion, launcher, results)
        write_outcome(results, name, outcome)
        kept = folder if outcome.state == "failed" else None
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome, kept


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Have TERM and the end of the terminal interrupt as Ctrl-C does, once, so that no run is left."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:  # a session that ends sends both
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
