"""How a run is trained changes its numbers by rounding at most: compiled blocks, and what a launch profile says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import ettsweep, runs_in, write_grid
from made_runs import MakeSpec, Train, result_of

from ettsweep.launch.profiles import LocalProfile, Slot, load_profile
from ettsweep.launch.worker import execution
from ettsweep.training.execution import Execution

CPU_SLOT, GPU_SLOT = Slot("cpu-0", "cpu", None, 3), Slot("gpu-0", "cuda", "0", 6)


def test_a_profile_says_how_a_run_is_trained() -> None:
    sets = ["compile=true", "micro_batch=7", "activation_checkpointing=true", "corrupt_images=fail", "peak_tflops=2"]
    profile = load_profile("local", [*sets, "log=[wandb]", "loader_workers=2", "checkpoint_every_steps=9"])
    assert execution(profile, CPU_SLOT) == Execution(
        checkpoint_every_steps=9,
        micro_batch=7,
        loader_workers=2,
        compile=True,
        activation_checkpointing=True,
        corrupt_images="fail",
        sinks=("wandb",),
        peak_flops=2e12,
    )


def test_what_a_profile_leaves_open_follows_from_the_slot() -> None:
    assert execution(LocalProfile(), CPU_SLOT) == Execution()
    assert execution(LocalProfile(), GPU_SLOT) == Execution(loader_workers=6), "a loader for each of its CPUs"
