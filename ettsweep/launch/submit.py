"""Submission: create the run folders of a plan, record their list, and have a launcher start workers."""

from collections.abc import Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from ettsweep.errors import InputError
from ettsweep.extras import check_installed
from ettsweep.files import Json
from ettsweep.launch.code_snapshot import release_snapshots, take_snapshot
from ettsweep.launch.first_runs import MAX_ALIKE
from ettsweep.launch.folders import check_folders
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.project_copy import ensure_copies
from ettsweep.processes import process_identity
from ettsweep.runs.data_location import configured_data, data_env, resolve_data
from ettsweep.runs.folder import TRIAL_PREFIX, RunDir
from ettsweep.runs.point import Point, from_the_middle
from ettsweep.runs.spec import BUILT_IN, Place, RunSpec, kind_of
from ettsweep.study.plan import Plan, PlannedRun


def submit(
    results: Path,
    plan: Plan,
    profile: Launcher,
    data: Mapping[str, str] | None = None,
    sweeps: Sequence[str] = (),
    *,
    one_first: bool = True,
) -> list[Path]:
    """Create the run folders of a plan, start workers for them, and return the folders of the submissions.

    Args:
        results: the results folder.
        plan: runs to launch.
        profile: their launch profile.
        data: given paths of data sets, by kind of task.
        sweeps: names of their sweeps.
        one_first: whether one run of families without a finished run starts first, see `first_runs`.

    Raises:
        LaunchError: no worker could be started; the message has SLURM's own.
        InputError: others may change the code.
    """
    if not plan.to_launch:
        return []
    specs = [planned.spec for planned in plan.to_launch]
    check_folders(results, specs)
    # Resolve paths now: workers may start in another folder.
    kinds = dict.fromkeys(
        kind for spec in specs if (kind := spec.info.data_kind) and not profile.sets_variable(data_env(kind))
    )
    locations = {kind: location for kind in kinds if (location := configured_data(kind, (data or {}).get(kind)))}
    try:
        trial = results.parent if results.parent.name.startswith(TRIAL_PREFIX) else None
        ensure_copies(results, specs, trial)
        for planned in plan.to_launch:
            run = RunDir.create(results, planned.spec)
            run.give_up(plan.run_index.status_of(planned.id).attempt)
        runs, unproven = _first_in_front(plan) if one_first else (plan.to_launch, [])
        content: Json = {
            "kind": profile.kind,
            "runs": [planned.id for planned in runs],
            "unproven": unproven,
            "sweeps": list(sweeps),
            "profile": profile.model_dump(mode="json"),
            "submitter": process_identity().to_json(),
            "code": str(take_snapshot(results)) if profile.snapshot else None,
            "data": {kind: resolve_data(location) for kind, location in locations.items()},
        }
        return profile.start(results, runs, content)
    finally:
        release_snapshots(results)


def _first_in_front(plan: Plan) -> tuple[tuple[PlannedRun, ...], list[str]]:
    """Return the runs to launch, and the ids of those of families without a finished run, the first ones in front.

    The first have different points, from the middle outwards: all seeds of one point may fail.
    """
    proven = {run.family for run in plan.run_index.runs.values() if run.state.finished}
    by_point: dict[Point, list[PlannedRun]] = {}
    for each in plan.to_launch:
        if each.spec.family_id not in proven:
            by_point.setdefault(each.spec.point, []).append(each)
    across = zip_longest(*(by_point[point] for point in from_the_middle(by_point)))
    first = {each.id: each for each in islice(filter(None, chain.from_iterable(across)), MAX_ALIKE)}
    planned = (*first.values(), *(each for each in plan.to_launch if each.id not in first))
    return planned, [each.id for each in planned if each.spec.family_id not in proven]


def check_plan(results: Path, plan: Plan, profile: Launcher, *, dry_run: bool = False) -> None:
    """Check that a plan could be submitted, before anything is recorded; a dry run asks no scheduler.

    Raises:
        InputError: a device of the profile or the folder of slots does not exist, a batch is smaller than
            `devices_per_run`, a model does not fit into memory, the results folder is not suitable, or others may
            change the code.
        LaunchError: SLURM refuses the profile, or does not answer.
    """
    if not plan.to_launch:
        return
    specs = [planned.spec for planned in plan.to_launch]
    check_folders(results, specs)
    check_resources(specs, profile, results)
    profile.check(results, plan.to_launch, dry_run=dry_run)


def check_resources(specs: Sequence[RunSpec], profile: Launcher, results: Path | None = None) -> None:
    """Check that runs can be trained on the devices of a profile, and in a results folder if it is given.

    Raises:
        InputError: a model is too large for their memory, they cannot share a run, or the folder is not suitable.
    """
    for spec in {spec.info.key: spec for spec in specs}.values():
        info, place = spec.info, Place(profile.devices_per_run, *profile.memory_limit(), results)
        if info.nodes is not None:
            profile.check_nodes(info.nodes)
        if spec.trainable == BUILT_IN and not profile.starts_other_python():
            check_installed(f"training {info.labels.model}", "torch")
        if info.gpus and place.devices != (needed := info.gpus * (info.nodes or 1)):
            product = "" if info.nodes == 1 else f" ({info.nodes} nodes x {info.gpus})"
            raise InputError(
                f"gpus: a run of this sweep needs {needed}{product}, but the launch profile has {place.devices}: pass "
                f"--launch-set devices_per_run={needed}"
            )
        if problems := kind_of(spec).check(spec, place):
            raise InputError.of(problems)
