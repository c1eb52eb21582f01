"""Step 6: several workers that share a device, by its own turns or by NVIDIA's MPS: runs of vit-digits a minute."""

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.pack import ETTSWEEP
from bench.session import NotMeasuredError
from ettsweep.files import read_json

MPS = "nvidia-cuda-mps-control"
START_S = 10.0


def runs(slots: int, seeds: int, mps: bool, small: bool) -> list[dict[str, Any]]:
    """Train a grid of nine points and some seeds on so many slots, one run after the other on each.

    `runs_per_min` is by the clock on the wall, starts of workers and evaluations included; `steady_runs_per_min` by the
    seconds that a run takes once its worker is there.
    """
    with tempfile.TemporaryDirectory() as folder, _daemon(Path(folder)) if mps else contextlib.nullcontext():
        results = Path(folder, "results")
        grid = ["grid", "--model", "vit-digits", "--strategy", "standard", "--seeds", ",".join(map(str, range(seeds)))]
        if small:
            sizes = {"schedule.total_steps": 8, "schedule.warmup_steps": 2, "schedule.eval_every": 4}
            grid += [f"--set={key}={value}" for key, value in sizes.items()]
        launch = [f"--launch-set={said}" for said in (f"slots={slots}", "pack=1")]
        began_s = time.monotonic()
        done = subprocess.run(
            [*ETTSWEEP, *grid, *launch, "--results", str(results), "--follow"],
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s = time.monotonic() - began_s
        found = [read_json(path) for path in results.glob("runs/*/result.json")]
        if done.returncode or not found:
            raise SystemExit(done.stderr)
    each_s = statistics.median(result["wall_s"] for result in found)
    return [
        {
            "slots": slots,
            "mps": mps,
            "runs": len(found),
            "wall_s": wall_s,
            "runs_per_min": 60 * len(found) / wall_s,
            "run_s": each_s,
            "steady_runs_per_min": 60 * slots / each_s,
        }
    ]


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Run a daemon of MPS for the body, with pipes and logs of its own; nothing else of the device is set.

    Raises:
        NotMeasuredError: there is none, or it does not start.
    """
    if not (command := shutil.which(MPS)):
        raise NotMeasuredError(f"no {MPS} on the PATH")
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    # In the foreground, and so in this session: it ends with the item whatever becomes of that.
    with subprocess.Popen(
        [command, "-f"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as it:
        try:
            deadline_s = time.monotonic() + START_S
            while not (folder / "pipe" / "control").exists():
                if it.poll() is not None or time.monotonic() > deadline_s:
                    said = (
                        it.stdout.read().decode(errors="replace").strip() if it.poll() is not None and it.stdout else ""
                    )
                    raise NotMeasuredError(f"{MPS} does not start: {said or 'it says nothing'}")
                time.sleep(0.1)
            yield
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([command], input=b"quit -t 5\n", capture_output=True, timeout=15, check=False)
            it.kill()
            for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
                os.environ.pop(name)
