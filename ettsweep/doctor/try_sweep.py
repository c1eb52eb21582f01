"""`ettsweep try`: a trial of a sweep's runs, from its spec to the outcome that is kept with it."""

from collections.abc import Callable
from pathlib import Path

from ettsweep.doctor.observations import conclude
from ettsweep.doctor.trial import Trial, kept_mark, scratch_folder
from ettsweep.launch.resolve import load_launch
from ettsweep.launch.submit import check_resources
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.tried import Outcome, write_outcome


def try_sweep(
    results: Path, name: str, sweep_spec: SweepSpec, notify: Callable[[str], None]
) -> tuple[Outcome, Path | None]:
    """Try what trains the runs of a sweep, at the centre of its first strategy, and keep what was seen.

    Args:
        results: the results folder.
        name: of the sweep, which need not exist yet.
        sweep_spec: as the sweep asks for it, with code, data and launch profile resolved.
        notify: receives a line on what is under way.

    Returns:
        What was seen, and the folder with the runs of the trial, which is kept if something failed.

    Raises:
        InputError: a run cannot be trained with the launch profile.
        StorageError: the results folder cannot be written.
    """
    study = sweep_spec.studies(name)[0]
    profile, data = load_launch(sweep_spec)
    check_resources([study.base], profile)
    study.base.check_results(results)
    sweep_spec.recipe.check_data(sweep_spec.data)
    seeds = [*sweep_spec.seeds, max(sweep_spec.seeds) + 1]
    with scratch_folder(results) as folder:
        record = Trial(study.base, seeds[1], profile, data, folder, notify).run()
        outcome = conclude(record, study.family, len(sweep_spec.specs()), study.criterion, profile, results)
        write_outcome(results, name, outcome)
        if outcome.state != "failed":
            return outcome, None
        kept_mark(folder).touch()
        return outcome, folder
