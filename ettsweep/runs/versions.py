"""Versions of ettsweep that trained finished runs: runs of different ones may differ in their last bits."""

from collections.abc import Iterable

from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.index import Run

CLAIM_FACTS = ("torch", "numpy", "ettsweep", "python", "instruction_set", "device_name")
"""Keys of claim.json that can change bits."""


def group_by_version(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group finished runs by the version and code of ettsweep that trained them, as recorded."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        recorded = (run.result or {}).get("environment") or {}
        # Results of earlier versions lack the code: read the attempt's files.
        if "code" not in recorded and (attempt := _finishing_attempt(run)):
            recorded = _facts(attempt)
        code = f", code {recorded['code'][:8]}" if recorded.get("code") else ""
        groups.setdefault(f"ettsweep {recorded.get('ettsweep', 'of an unrecorded version')}{code}", []).append(run)
    return groups


def find_mixed_versions(runs: Iterable[Run]) -> str:
    """Return a warning if finished runs were trained by different versions of ettsweep, else an empty text.

    The warning names the runs of other versions than the most frequent one, and further causes of different bits.
    """
    # The most frequent version is the reference, and not listed.
    (majority, majority_runs), *others = sorted(group_by_version(runs).items(), key=lambda group: -len(group[1])) or [
        ("", [])
    ]
    descriptions = []
    for name, members in others:
        ids = ", ".join(run.id for run in members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
        differs = "; ".join(_differences(_facts_without_code(majority_runs[0]), _facts_without_code(members[0])))
        descriptions.append(f"{ids} by {name}{f' (there {differs})' if differs else ''}")
    if not descriptions:
        return ""
    groups = ", ".join([f"{len(majority_runs)} trained by {majority}", *descriptions])
    hint = f"`ettsweep show {others[0][1][0].id}` lists the versions of one of them"
    return f"the runs have different versions: {groups}; {hint}"


def _facts_without_code(run: Run) -> Json:
    """Return the recorded facts about a finished run, except its code."""
    attempt = _finishing_attempt(run)
    recorded = _facts(attempt) if attempt else {}
    return {key: value for key, value in recorded.items() if key not in ("ettsweep", "code")}


def _finishing_attempt(run: Run) -> Attempt | None:
    """Return the attempt that finished a run, or else the latest."""
    return (
        run.dir.attempt(run.result["attempts"])
        if run.result and run.result.get("attempts")
        else run.dir.latest_attempt()
    )


def _facts(attempt: Attempt) -> Json:
    """Return the facts about an attempt that could change its bits: versions, code, processor or GPU."""
    claim, origin = attempt.claim(), attempt.provenance()
    code = {"code": origin["code"]} if origin.get("code") else {}
    return {**(origin.get("packages") or {}), **{key: claim[key] for key in CLAIM_FACTS if key in claim}, **code}


def _differences(recorded: Json, current: Json) -> list[str]:
    """Return a line for each changed fact."""
    return [
        f"{key} was {recorded_value}, is {current.get(key) or 'absent'}"
        for key, recorded_value in recorded.items()
        if current.get(key) != recorded_value
    ]
