"""Where all lies in a results folder: the names of its folders, and of the files of a run and of its attempts.

requests/               what was asked for
jobs/<submission>/      jobs that were submitted
code/<digest>/          snapshots of the code
runs/<run id>/          runs
"""

from pathlib import Path


def requests_dir(results: Path) -> Path:
    """Return the folder of all that was asked for."""
    return results / "requests"


def jobs_dir(results: Path) -> Path:
    """Return the folder of all submissions of a results folder."""
    return results / "jobs"


def code_dir(results: Path) -> Path:
    """Return the folder of all snapshots of a results folder."""
    return results / "code"


def runs_dir(results: Path) -> Path:
    """Return the folder of all runs of a results folder."""
    return results / "runs"


def is_run_id(name: str) -> bool:
    """Say whether `name` can be a run id: only then does it become a path."""
    return len(name) == 12 and all(c in "0123456789abcdef" for c in name)


class RunPaths:
    """The files of a run.

    Attributes:
        path: its folder.
        id: of the run, after which the folder is named.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @property
    def spec_path(self) -> Path:
        """spec.json: written first."""
        return self.path / "spec.json"

    @property
    def cancel_path(self) -> Path:
        """cancel.json: asked for by `cancel`, obeyed at the next step boundary, removed by `retry`."""
        return self.path / "cancel.json"

    @property
    def attempts_path(self) -> Path:
        """attempts/: a folder for each attempt, 0001/ and so on."""
        return self.path / "attempts"

    @property
    def metrics_path(self) -> Path:
        """metrics.jsonl: the whole stitched history of a finished run, written with the result."""
        return self.path / "metrics.jsonl"

    @property
    def result_path(self) -> Path:
        """result.json: written last, once; its presence means finished."""
        return self.path / "result.json"


class AttemptPaths:
    """The files of an attempt at a run.

    Attributes:
        run: its run.
        number: of the attempt, from 1.
        path: its folder.
    """

    def __init__(self, run: RunPaths, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run.attempts_path / f"{number:04d}"

    @property
    def claim_path(self) -> Path:
        """claim.json: who owns the attempt; it is there as soon as the folder is."""
        return self.path / "claim.json"

    @property
    def provenance_path(self) -> Path:
        """provenance.json: where the code of the owner comes from."""
        return self.path / "provenance.json"

    @property
    def execution_path(self) -> Path:
        """execution.json: how the attempt trains, as far as that can change the last bits of its numbers."""
        return self.path / "execution.json"

    @property
    def heartbeat_path(self) -> Path:
        """heartbeat: a counter of its owner."""
        return self.path / "heartbeat"

    @property
    def resume_path(self) -> Path:
        """resume.json: the earlier attempt, and its step, that this one went on from."""
        return self.path / "resume.json"

    @property
    def metrics_path(self) -> Path:
        """metrics.jsonl of this attempt: the steps after the one that it resumed from."""
        return self.path / "metrics.jsonl"

    @property
    def timings_path(self) -> Path:
        """timings.jsonl: how far it is, and how fast."""
        return self.path / "timings.jsonl"

    @property
    def log_path(self) -> Path:
        """log.txt."""
        return self.path / "log.txt"

    def skipped_path(self, rank: int) -> Path:
        """Return skipped-0.txt: samples that a process of the run has left out."""
        return self.path / f"skipped-{rank}.txt"

    def skipped_paths(self) -> list[Path]:
        """Return the files of all processes that have left samples out."""
        return sorted(self.path.glob("skipped-*.txt"))

    @property
    def checkpoint_path(self) -> Path:
        """checkpoint.pt, of a run that is not sharded."""
        return self.path / "checkpoint.pt"

    @property
    def parts_path(self) -> Path:
        """checkpoint.json, of a sharded run: which folder holds the processes' parts, and what they must be."""
        return self.path / "checkpoint.json"

    def parts_folder(self, step: int) -> Path:
        """Return the folder of what the processes of a sharded run save after a step."""
        return self.path / f"checkpoint-{step:08d}"

    def parts_folders(self) -> list[Path]:
        """Return the folders that processes of a sharded run have begun to save in."""
        return sorted(path for path in self.path.glob("checkpoint-*") if path.is_dir())

    @property
    def failure_path(self) -> Path:
        """failure.json: why it ended without a result."""
        return self.path / "failure.json"

    @property
    def retried_path(self) -> Path:
        """retried: `retry` forgave how it ended."""
        return self.path / "retried"
