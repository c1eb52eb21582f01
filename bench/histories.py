"""Record when the runs of a submission began, trained and ended, as data that a test replays.

    python -m bench.histories RESULTS JOB tests/runs/histories/NAME.json.gz

It reads the times of files: a folder that was copied has lost them.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from ettsweep.files import read_json, read_lines

LINES = 6
"""Lines of timings.jsonl that are kept of a run, at most."""

KEPT = ("status", "steps", "wall_s", "device_s", "start_s")


def record(results: Path, job: str) -> dict[str, Any]:
    """Return a submission's history: seconds count from the submission, or from shortly before its first run began.

    Each run has its spec, the worker that trained it, when it was claimed, when it ended, what of its result tells
    time, and lines of (time, progress, wall_s, device_s).
    """
    path = results / "jobs" / job / "submission.json"
    runs, submission = [], read_json(path)
    for run_id in submission["runs"]:
        run = results / "runs" / run_id
        claims = [claim for claim in run.glob("attempts/*/claim.json") if read_json(claim)["submission"] == job]
        if not claims or not (run / "result.json").exists():
            continue  # another submission ended it
        result, end_s = read_json(run / "result.json"), (run / "result.json").stat().st_mtime
        lines = read_lines(claims[0].parent / "timings.jsonl")
        lines = lines[:: -(-len(lines) // LINES)]
        runs.append(
            {
                "spec": read_json(run / "spec.json"),
                "worker": read_json(claims[0])["slot"],
                "claimed_s": claims[0].stat().st_mtime,
                "ended_s": end_s,
                "result": {key: result.get(key) for key in KEPT},
                "ensemble": (result.get("execution") or {}).get("ensemble", 1),
                # What it spent after the last line, such as the last evaluation, is little.
                "lines": [
                    [end_s - (result["wall_s"] - x["wall_s"]), x["progress"], x["wall_s"], x["device_s"]] for x in lines
                ],
            }
        )
    began_s = max(path.stat().st_mtime, min(run["claimed_s"] for run in runs) - 5.0)
    base = runs[0]["spec"]
    for run in runs:
        run["spec"] = {key: value for key, value in run["spec"].items() if value != base.get(key)}
        run["claimed_s"], run["ended_s"] = (round(run[key] - began_s, 2) for key in ("claimed_s", "ended_s"))
        run["lines"] = [[round(t - began_s, 2), round(p, 4), round(w, 2), round(d, 3)] for t, p, w, d in run["lines"]]
    return {"spec": base, "runs": runs}


if __name__ == "__main__":
    folder, name, target = sys.argv[1:]
    text = json.dumps(record(Path(folder), name), separators=(",", ":"))
    Path(target).write_bytes(gzip.compress(text.encode(), mtime=0))
