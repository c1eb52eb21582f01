"""`ettsweep try`: the trial of a sweep, from its spec to the stored outcome."""

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
    """Try a sweep's program at the centre of its first strategy, and keep the observations.

    Args:
        results: the results folder.
        name: of the sweep, which need not exist.
        sweep_spec: of the sweep, with code and data resolved.
        launcher: of its runs.
        notify: receives lines on progress.
        notes: first lines, once the project is copied.

    Returns:
        The observations, and the folder of the trial's runs, kept if a check failed.

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
    """Let TERM and the end of the terminal interrupt like Ctrl-C, once: no run may be left."""

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
