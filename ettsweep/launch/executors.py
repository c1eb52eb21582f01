"""submitit's local executor, made to outlive the terminal."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from submitit.local.local import LocalExecutor, LocalJob

TEN_YEARS_MIN = 10 * 366 * 24 * 60


class DetachedLocalExecutor(LocalExecutor):
    """Starts a job in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.

    submitit's own controller is started, but with CUDA_VISIBLE_DEVICES left alone (the worker pins itself to its
    slot's GPU) and without a time limit.
    """

    def _submit_command(self, command: str) -> LocalJob[Any]:
        env = {
            **os.environ,
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * TEN_YEARS_MIN),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
        }
        with (Path(self.folder) / "controller.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=[0])
