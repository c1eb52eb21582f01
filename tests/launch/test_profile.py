import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep

from ettsweep.errors import InputError, StorageError
from ettsweep.launch.gpus import mps_is_running, visible_gpus
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import AnyProfile, choose_launch, find_profile, load_profile, profile_note
from ettsweep.launch.slots import Slot, held_slots, lock_paths, lock_slot, make_lock_dir, sort_free_first, unlock
from ettsweep.launch.slurm import FIELD_BY_OPTION, SlurmProfile
from ettsweep.launch.slurm_api import RESERVED_OPTIONS
from ettsweep.launch.trainer_settings import TrainerSettings
from ettsweep.processes import cores
from ettsweep.shipped_files import shipped
from ettsweep.study.sweep import LaunchSettings, Sweep, SweepEntry

CORES = cores()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the GPUs of this machine, and run beside no launch profiles."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


# --- slots ----------------------------------------------------------------------------------------------------------


def test_without_gpus_there_is_a_slot_for_each_core_with_one_thread() -> None:
    slots = LocalProfile().resolve_slots()
    assert slots == [Slot(f"cpu-{number}", "cpu", None, 1) for number in range(CORES)]


def test_slots_share_the_cores_among_them() -> None:
    (slot,) = LocalProfile(slots=1).resolve_slots()
    assert slot == Slot("cpu-0", "cpu", None, CORES)
    resolve_slots_result = LocalProfile(slots=CORES + 3).resolve_slots()
    assert len(resolve_slots_result) == CORES + 3
    assert {slot.threads for slot in resolve_slots_result} == {1}


def test_gpus_share_the_cores_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr("ettsweep.launch.local.cores", lambda: 16)
    assert {slot.threads for slot in LocalProfile(devices=[0, 2]).resolve_slots()} == {8}
    assert {slot.threads for slot in LocalProfile(devices=[0, 2], workers_per_device=2).resolve_slots()} == {4}


def test_threads_can_be_given() -> None:
    assert {slot.threads for slot in LocalProfile(slots=2, threads=5).resolve_slots()} == {5}


def test_there_is_a_slot_for_each_gpu_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")  # numbers count what this process may use
    slots = LocalProfile(devices=[0, 2], threads=3).resolve_slots()
    assert slots == [Slot("gpu-4", "cuda", "4", 3), Slot("gpu-6", "cuda", "6", 3)]


def test_workers_share_gpus_as_evenly_as_can_be_and_each_has_a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    def workers(**profile: Any) -> list[tuple[str, str | None, int]]:
        return [(slot.name, slot.gpu, slot.sharers) for slot in LocalProfile(**profile).resolve_slots()]

    values = [("gpu-4", "4", 2), ("gpu-5", "5", 2), ("gpu-4.2", "4", 2), ("gpu-5.2", "5", 2)]
    assert workers(slots=4) == workers(workers_per_device=2) == values
    assert workers(slots=3) == [("gpu-4", "4", 2), ("gpu-5", "5", 1), ("gpu-4.2", "4", 2)]
    assert workers(slots=1) == [("gpu-4", "4", 1)]
    assert workers(workers_per_device=3, devices=[1]) == [(name, "5", 3) for name in ("gpu-5", "gpu-5.2", "gpu-5.3")]
    with pytest.raises(
        InputError, match=r"devices_per_run: 2 requested, but only 1 available \(slots=1; 2 are needed\)"
    ):
        LocalProfile(slots=1, devices_per_run=2).resolve_slots()
    with pytest.raises(InputError, match="slots: 4 workers cannot share 2 GPUs where devices_per_run is 2"):
        LocalProfile(slots=4, devices_per_run=2).resolve_slots()


def test_a_gpu_that_is_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,4")
    with pytest.raises(
        InputError, match="CUDA_VISIBLE_DEVICES=4,5,4: CUDA shows no GPU by that: a repeated entry hides"
    ):
        LocalProfile().resolve_slots()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(InputError, match="devices: GPU 0 is named twice; workers_per_device=2 has two workers share"):
        load_profile("local", ["devices=[0, 1, 0]"])
    with pytest.raises(InputError, match="slots and workers_per_device both set the number of workers"):
        load_profile("local", ["slots=2", "workers_per_device=2"])
    with pytest.raises(InputError, match="must be 1 with devices_per_run > 1"):
        load_profile("local", ["devices_per_run=2", "workers_per_device=2"])


def test_workers_of_a_device_are_those_of_a_gpu() -> None:
    with pytest.raises(InputError, match="workers_per_device: there is no GPU here; slots="):
        LocalProfile(workers_per_device=2, devices="cpu").resolve_slots()


@pytest.mark.parametrize("runs", [False, True])
def test_it_is_known_whether_mps_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: bool) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if runs:
        (tmp_path / "control").touch()
    assert mps_is_running() is runs


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="devices: there is no GPU 1; 0 found here"):
        LocalProfile(devices=[1]).resolve_slots()


@pytest.mark.parametrize(
    ("value", "gpus"),
    [("", []), ("-1", []), ("0", ["0"]), ("3,1", ["3", "1"]), (" 0 , 1 ", ["0", "1"]), ("GPU-ab12", ["GPU-ab12"])],
)
def test_auto_takes_the_gpus_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, value: str, gpus: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus
    result = [slot.gpu for slot in LocalProfile().resolve_slots() if slot.device == "cuda"]
    assert result == gpus
    assert all(slot.device == "cpu" for slot in LocalProfile(devices="cpu").resolve_slots())


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put a driver's tool in front that lists two GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\n[ "$*" = -L ] || exit 2\n'
        "echo 'GPU 0: NVIDIA H200 (UUID: GPU-aaaa-1)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-bbbb-2)'\n"
    )
    tool.chmod(0o755)


@pytest.mark.usefixtures("two_gpus")
def test_slots_of_gpus_are_named_by_uuid() -> None:
    slots = LocalProfile(devices=[1, 0], threads=2).resolve_slots()
    assert slots == [
        Slot("gpu-GPU-bbbb-2", "cuda", "GPU-bbbb-2", 2),
        Slot("gpu-GPU-aaaa-1", "cuda", "GPU-aaaa-1", 2),
    ]


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_the_driver_does_not_list_is_refused() -> None:
    with pytest.raises(InputError) as error:
        LocalProfile(devices=[0, 2]).resolve_slots()
    assert str(error.value) == "devices: there is no GPU 2; 2 found here (`devices: cpu` uses none)"


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_hidden_from_this_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [slot.gpu for slot in LocalProfile(devices=[0]).resolve_slots()] == ["GPU-bbbb-2"]
    with pytest.raises(InputError, match="devices: there is no GPU 1; 1 found here"):
        LocalProfile(devices=[1]).resolve_slots()


HERE = Path("results")


# --- locks of slots -------------------------------------------------------------------------------------------------


def test_slot_locks_lie_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        monkeypatch.setenv("ETTSWEEP_SLOTS", str(tmp_path / name))
        assert make_lock_dir() == tmp_path / name
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("value", [None, ""])
def test_slot_locks_of_a_user_lie_in_one_place_by_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("ETTSWEEP_SLOTS")
    else:
        monkeypatch.setenv("ETTSWEEP_SLOTS", value)
    assert make_lock_dir() == Path(f"/tmp/ettsweep-{os.getuid()}")


def test_slot_locks_of_someone_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    (tmp_path / "link").symlink_to(slots)
    monkeypatch.setenv("ETTSWEEP_SLOTS", str(tmp_path / "link"))
    with pytest.raises(StorageError, match=r"link: belongs to another user; .*set ETTSWEEP_SLOTS"):
        make_lock_dir()
    monkeypatch.setenv("ETTSWEEP_SLOTS", str(slots))
    monkeypatch.setattr(os, "getuid", lambda: slots.stat().st_uid + 1)
    with pytest.raises(StorageError, match=r"slots: belongs to another user; .*set ETTSWEEP_SLOTS"):
        make_lock_dir()


def test_a_slot_is_held_once_and_free_ones_come_first() -> None:
    slots = LocalProfile(slots=3).resolve_slots()
    lock = lock_slot(slots[0], HERE, wait=False)
    assert lock is not None
    assert lock_slot(slots[0], HERE, wait=False) is None
    assert sort_free_first(slots) == [slots[1], slots[2], slots[0]]
    unlock(lock)
    assert sort_free_first(slots) == slots


# --- several devices for a run --------------------------------------------------------------------------------------


def test_slots_train_a_run_together_in_groups_of_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    groups = LocalProfile(devices_per_run=3, threads=1).resolve_slots()
    assert [[slot.gpu, *(other.gpu for other in slot.others)] for slot in groups] == [["0", "1", "2"], ["3", "4", "5"]]
    assert all(not other.others for slot in groups for other in slot.others)
    (pair,) = LocalProfile(devices="cpu", slots=2, devices_per_run=2, threads=1).resolve_slots()
    assert (pair.name, [other.name for other in pair.others]) == ("cpu-0", ["cpu-1"])
    assert Slot.from_json(json.loads(json.dumps(asdict(pair)))) == pair
    resolve_slots_result = LocalProfile(devices="cpu", slots=2, threads=1).resolve_slots()
    assert [slot.others for slot in resolve_slots_result] == [(), ()]


def test_more_devices_for_a_run_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"devices_per_run: 3 requested, but only 2 available \(on the CPU: slots=3\)"):
        LocalProfile(slots=2, devices_per_run=3).resolve_slots()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match=r"devices_per_run: 2 requested, but only 1 available$"):
        LocalProfile(devices_per_run=2).resolve_slots()


def test_a_group_of_slots_is_held_whole_or_not_at_all() -> None:
    (pair,) = LocalProfile(slots=2, devices_per_run=2).resolve_slots()
    first, second = LocalProfile(slots=2).resolve_slots()
    lock = lock_slot(second, HERE, wait=False)
    assert lock is not None
    assert lock_slot(pair, HERE, wait=False) is None
    assert sort_free_first([second, first]) == [first, second], "the first was not kept"
    unlock(lock)
    lock = lock_slot(pair, HERE, wait=False)
    assert lock is not None
    assert lock_slot(first, HERE, wait=False) is lock_slot(second, HERE, wait=False) is None
    unlock(lock)


def test_no_lock_is_left_open_by_whoever_had_or_tried_or_looked_at_slots() -> None:
    (pair,) = LocalProfile(slots=2, devices_per_run=2).resolve_slots()
    first, second = LocalProfile(slots=2).resolve_slots()
    before = os.listdir("/proc/self/fd")
    for slot in (first, second):
        lock = lock_slot(slot, HERE, wait=False)
        assert lock is not None
        assert lock_slot(pair, HERE, wait=False) is None
        assert len(held_slots(lock_paths(pair))) == 1
        unlock(lock)
    assert os.listdir("/proc/self/fd") == before


def test_a_job_trains_one_run_on_all_its_devices_or_one_on_each() -> None:
    assert slurm("nodes=2", "gpus=4", "devices_per_run=8").devices_per_run == 8
    assert slurm("nodes=2", "gpus=0", "devices_per_run=2").workers == 1
    with pytest.raises(
        InputError, match=r"a job has 8 workers \(nodes x gpus\), which train a run each \(1\) or one run"
    ):
        slurm("nodes=2", "gpus=4", "devices_per_run=4")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("devices_per_run=0", "devices_per_run"),
        ("trainer.micro_batch=0", "trainer.micro_batch: a whole number of at least 1, or auto, is expected, got 0"),
        ("trainer.loader_workers=-1", "trainer.loader_workers: a whole number, or auto, is expected, got -1"),
        ("trainer.compile=yes please", "trainer.compile: true, false or auto"),
        ("trainer.corrupt_images=ignore", "trainer.corrupt_images"),
        ("trainer.log=[paper]", "trainer.log"),
        ("trainer.peak_tflops=0", "trainer.peak_tflops"),
    ],
)
def test_what_cannot_be_a_way_to_train_is_refused(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_profile("local", [override])


def test_more_workers_than_this_machine_could_bear_are_refused() -> None:
    with pytest.raises(InputError, match=r"^--launch-set slots=100000: slots: 100000 are too many: this machine has"):
        load_profile("local", ["slots=100000"])
    with pytest.raises(
        InputError,
        match=r"--launch-set threads=100000: threads: 100000 are too many(.|\n)*trainer.loader_workers: 100000 are",
    ):
        load_profile("local", ["threads=100000", "trainer.loader_workers=100000"])
    assert load_profile("local", [f"slots={2 * CORES}"]).kind == "local"
    assert load_profile("slurm", ["trainer.loader_workers=100000"]).kind == "slurm"  # that machine is another one


def gib(profile: AnyProfile) -> tuple[float, str]:
    capacity, of = profile.memory_limit()
    return capacity / 2**30, of


def test_the_room_of_a_run_is_that_of_its_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = Path("/proc/meminfo").read_text().split()
    assert 0 < LocalProfile(devices="cpu").memory_limit()[0] <= 1024 * int(lines[lines.index("MemTotal:") + 1])
    assert gib(slurm("gpus=0", "mem_gb=8", "nodes=2")) == (16, "2 nodes with that mem_gb")
    assert gib(slurm("gpus=0")) == (2**16, "1 node")
    assert gib(slurm("gpus=4", "devices_per_run=4")) == (2**12, "4 GPUs")
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *memory.total*) printf "81920\\n40960\\n";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gib(LocalProfile()) == (80, "a GPU of this machine")
    assert gib(LocalProfile(devices_per_run=2)) == (160, "2 GPUs of this machine")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(shipped("launch").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profiles_are_valid(path: Path) -> None:
    assert find_profile(path.stem) == path
    assert load_profile(path.stem).kind in path.read_text()


def test_a_profile_of_ones_own_wins_over_the_shipped_one() -> None:
    Path("launch").mkdir()
    Path("launch/local.yaml").write_text("slots: 3\nthreads: 1\n")
    assert load_profile("local") == LocalProfile(slots=3, threads=1)
    line = "launch profile: launch/local.yaml; it takes precedence over the shipped local.yaml"
    assert profile_note("local") == line


def test_a_line_says_which_profile_is_used_but_for_the_default() -> None:
    assert profile_note("local") == ""
    Path("slurm.yaml").write_text("kind: slurm\n")
    assert profile_note("slurm") == f"launch profile: {shipped('launch') / 'slurm.yaml'}, which ettsweep ships"
    assert profile_note("./slurm.yaml") == "launch profile: slurm.yaml"
    Path("launch").symlink_to(shipped("launch"))
    assert profile_note("slurm") == "launch profile: launch/slurm.yaml, which ettsweep ships"


def test_a_profile_can_be_a_file_anywhere() -> None:
    Path("mine.yaml").write_text("devices: cpu\ncheckpoint_every_s: 1e1\n")
    assert load_profile("mine.yaml") == LocalProfile(devices="cpu", checkpoint_every_s=10.0)
    assert load_profile("./mine.yaml").devices == "cpu"


def test_overrides_win_over_the_file() -> None:
    Path("mine.yaml").write_text("slots: 3\n")
    profile = load_profile("mine.yaml", ["slots=1", "devices=[0, 1]", "checkpoint_every_steps=5", "threads=auto"])
    assert profile == LocalProfile(slots=1, devices=[0, 1], checkpoint_every_steps=5)


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown launch profile 'loacl'; did you mean 'local'"):
        load_profile("loacl")
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such launch profile"):
        load_profile("nowhere.yaml")
    with pytest.raises(InputError, match="no/where: no such launch profile"):
        load_profile("no/where")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("slots=0", "slots: a whole number of at least 1, or auto, is expected, got 0"),
        ("slots=many", "slots: a whole number of at least 1, or auto, is expected, got 'many'"),
        ("threads=0", "threads: a whole number of at least 1, or auto, is expected, got 0"),
        ("threads=1.5", "threads: a whole number of at least 1, or auto, is expected, got 1.5"),
        ("devices=gpu", "devices: auto, cpu or a list of GPU numbers is expected, got 'gpu'"),
        ("devices=[]", "devices: auto, cpu or a list of GPU numbers is expected, got []"),
        ("devices=[-1]", "devices: auto, cpu or a list of GPU numbers is expected, got [-1]"),
        ("checkpoint_every_s=-1", "checkpoint_every_s: input should be greater than or equal to 0, got -1"),
        ("checkpoint_every_steps=0", "checkpoint_every_steps: input should be greater than or equal to 1, got 0"),
        ("partition=debug", "--launch-set partition=debug: partition: unknown key of kind local; `kind: slurm` has it"),
        ("slosts=2", "--launch-set slosts=2: slosts: unknown key; did you mean slots?"),
        ("environmet.A=2", "--launch-set environmet.A=2: environmet: unknown key; known: checkpoint_every_s, "),
        ("slots", "--launch-set slots: key=value is expected"),
    ],
)
def test_bad_values_are_refused(override: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_profile("local", [override])
    assert message in str(error.value)


def test_a_profile_that_is_no_mapping_is_refused() -> None:
    Path("mine.yaml").write_text("- slots\n")
    with pytest.raises(InputError, match=r"mine\.yaml: a mapping of keys to values is expected"):
        load_profile("mine.yaml")


# --- SLURM ----------------------------------------------------------------------------------------------------------


def slurm(*overrides: str) -> SlurmProfile:
    """Load the smallest profile for SLURM with other values for some keys."""
    Path("mine.yaml").write_text("kind: slurm\n")
    profile = load_profile("mine.yaml", overrides)
    assert isinstance(profile, SlurmProfile)
    return profile


def refusal(*overrides: str, text: str = "kind: slurm\n") -> str:
    """Return why a profile for SLURM is refused."""
    Path("mine.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load_profile("mine.yaml", overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("slurm", {"gpus": 1, "runs_per_job": 1, "snapshot": True}),
        ("slurm-cpu", {"gpus": 0, "runs_per_job": 20, "workers": 1}),
        ("slurm-preempt", {"partition": "preempt", "checkpoint_every_s": 60.0, "runs_per_job": 1}),
        ("slurm-node", {"gpus": 4, "workers": 4, "sbatch": {"exclusive": True}}),
        ("slurm-container", {"setup": ("module load apptainer",)}),
    ],
)
def test_shipped_profiles_for_slurm_say_what_their_names_promise(name: str, values: dict[str, Any]) -> None:
    profile = load_profile(name)
    assert isinstance(profile, SlurmProfile)
    assert {key: getattr(profile, key) for key in values} == values


def test_a_node_of_several_gpus_is_given_several_runs_for_each() -> None:
    profile = load_profile("slurm-node")
    assert isinstance(profile, SlurmProfile)
    assert profile.runs_per_job >= 2 * profile.workers


def test_a_folder_beside_profiles_is_no_profile() -> None:
    Path("launch/slurm.yaml").mkdir(parents=True)
    Path("launch/scripts").mkdir()
    with pytest.raises(InputError, match="unknown launch profile 'scripts'") as error:
        load_profile("scripts")
    assert "scripts" not in str(error.value).partition("Known:")[2]
    assert find_profile("slurm") == shipped("launch") / "slurm.yaml"


def test_a_profile_needs_nothing_but_its_kind() -> None:
    profile = slurm()
    assert (profile.time_min, profile.nodes, profile.workers) == (240, 1, 1)
    assert (profile.partition, profile.mem_gb, profile.setup, profile.sbatch) == (None, None, (), {})


def test_every_field_can_be_given_in_a_file() -> None:
    Path("mine.yaml").write_text(
        """
kind: slurm
partition: gpu
account: "0123"
qos: high
constraint: a100|h100
time_min: 90
nodes: 2
gpus: 4
cpus: 6
mem_gb: 0.5
max_parallel: 3
runs_per_job: 8
setup: [module load cuda, "source '/a b/activate'"]
environment: {A: 1, B_2: two words, C: true, D: ""}
sbatch: {mail-type: END, exclusive: true, hold: false, nice: 5, begin: 16:00:00}
python: apptainer exec image.sif python3
warn_s: 60
heartbeat_s: 10
snapshot: true
devices_per_run: 8
trainer:
  ensemble: 1
  micro_batch: 64
  loader_workers: 5
  compile: false
  activation_checkpointing: true
  sharded: true
  corrupt_images: fail
  log: [tensorboard]
  peak_tflops: 989
"""
    )
    profile = load_profile("mine.yaml")
    assert isinstance(profile, SlurmProfile)
    assert profile.environment == {"A": 1, "B_2": "two words", "C": True, "D": ""}
    assert "two words" not in repr(profile)
    assert profile.model_dump() == {
        "kind": "slurm",
        "partition": "gpu",
        "account": "0123",
        "qos": "high",
        "constraint": "a100|h100",
        "time_min": 90,
        "nodes": 2,
        "gpus": 4,
        "cpus": 6,
        "mem_gb": 0.5,
        "max_parallel": 3,
        "runs_per_job": 8,
        "setup": ("module load cuda", "source '/a b/activate'"),
        "environment": dict.fromkeys(("A", "B_2", "C", "D"), "***"),
        "sbatch": {"mail-type": "END", "exclusive": True, "hold": False, "nice": 5, "begin": "16:00:00"},
        "python": "apptainer exec image.sif python3",
        "warn_s": 60,
        "checkpoint_every_s": 300.0,
        "checkpoint_every_steps": None,
        "heartbeat_s": 10.0,
        "snapshot": True,
        "devices_per_run": 8,
        "trainer": {
            "ensemble": 1,
            "micro_batch": 64,
            "loader_workers": 5,
            "compile": False,
            "activation_checkpointing": True,
            "sharded": True,
            "corrupt_images": "fail",
            "log": ("tensorboard",),
            "peak_tflops": 989.0,
        },
    }


# --- settings of the trainer ------------------------------------------------------------------------------------------

FLAT = {
    **{"ensemble": 1, "micro_batch": 64, "loader_workers": 5, "compile": False},
    **{"activation_checkpointing": True, "sharded": True, "corrupt_images": "fail", "log": ["tensorboard"]},
    "peak_tflops": 989.0,
}
"""All fields of the block `trainer`."""


@pytest.mark.parametrize("kind", ["local", "slurm"])
def test_settings_of_the_trainer_at_the_top_of_a_profile_are_refused(kind: str) -> None:
    assert FLAT.keys() == TrainerSettings.model_fields.keys()
    text = f"kind: {kind}\n{json.dumps(FLAT)[1:-1].replace(', ', chr(10))}\n"
    assert set(refusal(text=text).splitlines()) == {
        f"mine.yaml: {key}: is a key of the block trainer; write trainer.{key}" for key in FLAT
    }
    assert refusal("ensemble=8", text=f"kind: {kind}\ntrainer: {{ensemble: 2}}\n") == (
        "--launch-set ensemble=8: ensemble: is a key of the block trainer; write trainer.ensemble"
    )
    command = (
        "grid",
        "--model",
        "vit-digits",
        "--dry-run",
        "--results",
        "r",
        "--launch",
        kind,
        "--launch-set",
        "log=[]",
    )
    error = ettsweep(*command, code=2).stderr
    assert error == "ettsweep: --launch-set log=[]: log: is a key of the block trainer; write trainer.log\n"


def test_a_misspelt_setting_of_the_trainer_is_told() -> None:
    message = "trainer.ensmeble: unknown key; did you mean trainer.ensemble?"
    assert refusal("trainer.ensmeble=8") == f"--launch-set trainer.ensmeble=8: {message}"
    assert refusal(text="kind: slurm\ntrainer: fast\n").startswith("mine.yaml: trainer: a mapping of keys")


def test_a_profile_without_settings_of_the_trainer_does_not_load_it() -> None:
    code = (
        "import sys; from ettsweep.launch.profile import load_profile, read_profile;"
        "profile = load_profile(sys.argv[1], ['threads=1']);"
        "read_profile(profile.kind, profile.model_dump(mode='json'), 'submission.json');"
        "print([name for name in sys.modules if name.startswith('ettsweep.trainer')])"
    )
    for name in ("local", "slurm"):
        options = code.replace("threads=1", "time_min=9") if name == "slurm" else code
        done = subprocess.run([sys.executable, "-c", options, name], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


def test_parts_of_a_field_are_overridden_by_dots() -> None:
    profile = slurm("sbatch.mail-type=END", "sbatch.exclusive=true", "environment.A=1", "environment.B=x=y", "gpus=0")
    assert profile.sbatch == {"mail-type": "END", "exclusive": True}
    assert profile.environment == {"A": 1, "B": "x=y"}
    Path("mine.yaml").write_text("kind: slurm\nsbatch: {nice: 5, mail-type: FAIL}\n")
    profile_result = load_profile("mine.yaml", ["sbatch.mail-type=END"])
    assert isinstance(profile_result, SlurmProfile)
    assert profile_result.sbatch == {"nice": 5, "mail-type": "END"}, "the others stay as the file has them"
    profiles = load_profile("mine.yaml", ["sbatch={nice: 1}"])
    assert isinstance(profiles, SlurmProfile)
    assert profiles.sbatch == {"nice": 1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("partition.x=1", "--launch-set partition.x=1: partition: input should be a valid string"),
        ("sbatch.=1", "--launch-set sbatch.=1: key=value is expected"),
        (".a=1", "--launch-set .a=1: key=value is expected"),
        ("mail-type=END", "--launch-set mail-type=END: key=value is expected"),
        ("sbatch.mail-type", "--launch-set sbatch.mail-type: key=value is expected"),
        (
            "sbatch.mail.type=END",
            "--launch-set sbatch.mail.type=END: sbatch: 'mail.type' is not a long option of sbatch",
        ),
        ("environment.A.B=1", "--launch-set environment.A.B=***: environment: 'A.B' is not a variable name"),
    ],
)
def test_an_override_that_is_none_is_refused(override: str, message: str) -> None:
    assert message in refusal(override)


def test_parts_of_what_has_none_are_refused() -> None:
    assert refusal("partition.x=1", text="kind: slurm\npartition: gpu\n") == (
        "--launch-set partition.x=1: partition has no parts; partition=value sets it"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("time_min=4:00:00", "time_min: input should be a valid integer, got '4:00:00'"),
        ("time_min=0", "time_min: input should be greater than or equal to 1, got 0"),
        ("time_min=1.5", "time_min: input should be a valid integer, got 1.5"),
        ("time=60", "time: unknown key; did you mean time_min?"),
        ("slots=2", "slots: unknown key of kind slurm; `kind: local` has it"),
        ("nodes=0", "nodes: input should be greater than or equal to 1, got 0"),
        ("gpus=-1", "gpus: input should be greater than or equal to 0, got -1"),
        ("gpus=true", "gpus: input should be a valid integer, got True"),
        ("gpus=a100:4", "gpus: input should be a valid integer, got 'a100:4'"),
        ("cpus=0", "cpus: input should be greater than or equal to 1, got 0"),
        ("mem_gb=32G", "mem_gb: input should be a valid number, got '32G'"),
        ("mem_gb=0", "mem_gb: input should be greater than 0, got 0"),
        ("max_parallel=0", "max_parallel: input should be greater than or equal to 1, got 0"),
        ("runs_per_job=0", "runs_per_job: input should be greater than or equal to 1, got 0"),
        ("runs_per_job=auto", "runs_per_job: input should be a valid integer, got 'auto'"),
        ("account=123", "account: input should be a valid string, got 123"),
        ("setup=module load cuda", "setup: input should be a valid tuple, got 'module load cuda'"),
        ("setup=[a, 1]", "setup.1: input should be a valid string, got 1"),
        ("sbatch.mail-type={a: 1}", "sbatch.mail-type: a word or a number is expected, got {'a': 1}"),
        ("kind=cloud", "kind: unknown kind 'cloud'. Known: local, slurm"),
        ("kind=[slurm]", "kind: unknown kind \"['slurm']\"; did you mean 'slurm'? Known: local, slurm"),
        ("heartbeat_s=0", "heartbeat_s: input should be greater than 0, got 0"),
    ],
)
def test_bad_values_of_a_slurm_profile_are_refused(override: str, message: str) -> None:
    assert refusal(override) == f"--launch-set {override}: {message}"
    assert "--launch-set" not in refusal(text="kind: slurm\ntime_min: 0\n"), "that is the file's fault"


def test_a_time_of_day_in_a_file_is_not_read_as_seconds() -> None:
    assert refusal(text="kind: slurm\ntime_min: 4:00:00\n") == (
        "mine.yaml: time_min: input should be a valid integer, got '4:00:00'"
    )


def test_all_bad_values_are_told_at_once() -> None:
    message = refusal(text="kind: slurm\ngpus: many\npartitoin: x\nnodes: 0\nsbatch: {a: [1]}\n")
    lines = message.splitlines()
    assert all(line.startswith("mine.yaml: ") for line in lines)
    assert [line.split(": ")[1] for line in lines] == ["partitoin", "nodes", "gpus", "sbatch.a"]


@pytest.mark.parametrize(
    "value", ["a\nb", "a\n#SBATCH --x", "a\rb", "a\tb", "a\x00b", "a\x1b[0m", "a\u2028b", "a\x85b"]
)
@pytest.mark.parametrize(
    "location", ["partition", "account", "qos", "constraint", "python", "setup", "environment", "sbatch"]
)
def test_what_would_end_a_line_of_the_script_is_refused(location: str, value: str) -> None:
    values: dict[str, Any] = {"setup": [value], "environment": {"A": value}, "sbatch": {"comment": value}}
    with pytest.raises(ValueError, match=f"(?s){location}.* is expected"):
        SlurmProfile(kind="slurm", **{location: values.get(location, value)})


def test_such_a_value_in_a_file_is_told_with_its_place() -> None:
    message = refusal(text='kind: slurm\npartition: "gpu\\n#SBATCH --uid=0"\nsetup: ["a", "b\\rc"]\n')
    assert message == (
        "mine.yaml: partition: text on one line is expected, got 'gpu\\n#SBATCH --uid=0'\n"
        "mine.yaml: setup.1: text on one line is expected, got 'b\\rc'"
    )
    assert "partition: text on one line is expected, got ''" in refusal('partition=""')


def test_an_option_of_sbatch_is_no_command_of_setup() -> None:
    assert "]: setup: " in refusal("setup=['#SBATCH --partition=gpu']")


@pytest.mark.parametrize("value", ["1.10", "1e3", "0.0"])
def test_a_variable_that_yaml_would_rewrite_is_refused_unless_it_is_quoted(value: str) -> None:
    assert "mine.yaml with --launch-set environment.VERSION=***: environment: VERSION: YAML may not read " in refusal(
        f"environment.VERSION={value}"
    )
    assert slurm(f"environment.VERSION='{value}'").environment == {"VERSION": value}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("TOKEN=hunter2", "names with their values are expected, such as {NCCL_SOCKET_IFNAME: ib0}"),
        ("[TOKEN=hunter2]", "names with their values are expected, such as {NCCL_SOCKET_IFNAME: ib0}"),
        ("{TOKEN=hunter2: 1}", "'TOKEN' is not a variable name"),
        ("{TOKEN: [hunter2]}", "TOKEN: a word or a number on one line is expected"),
        ("{TOKEN: null}", "TOKEN: a word or a number on one line is expected"),
        ('{TOKEN: "hunter2\\n"}', "TOKEN: a word or a number on one line is expected"),
        ("{TOKEN: 12.5}", "TOKEN: YAML may not read this number as it is written; put it in quotes"),
        ("{TOKEN: *hunter2}", "found undefined alias"),
        ("{TOKEN: !hunter2 x}", "could not determine a constructor for the tag"),
        ("{TOKEN: 2024-12-50}", "a date, a number or a value with !! is none; put quotes around what is meant"),
        ("{TOKEN: {hunter2", "expected ',' or '}'"),
    ],
)
def test_what_is_wrong_with_variables_is_said_without_their_values(value: str, text: str) -> None:
    values = refusal(f"environment={value}"), refusal(text=f"kind: slurm\nenvironment: {value}\n")
    if value.startswith("{TOKEN: "):
        values += (refusal(f"environment.TOKEN={value.removeprefix('{TOKEN: ').removesuffix('}')}"),)
    for message in values:
        assert message.startswith(
            ("mine.yaml: ", "mine.yaml with --launch-set environment", "--launch-set environment")
        )
        assert text in message
        assert not {"hunter2", "12.5", "2024"} & set(re.findall(r"[\w.]+", message))


def test_a_variable_that_a_sweep_has_kept_without_its_value_is_asked_for() -> None:
    assert refusal("environment.TOKEN=***") == (
        "--launch-set environment.TOKEN=***: the value is not kept with a sweep, as it may be a secret; give it again, "
        "or name a profile that has it with --launch"
    )


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "", "A=B", "A;ls", "$A", "A\n", "É", "AÉ"])
def test_names_of_variables_are_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)environment\n.* is not a variable name"):
        SlurmProfile(kind="slurm", environment={name: 1})


@pytest.mark.parametrize(
    "option", ["mail_type", "--mail-type", "-p", "Mail-type", "mail type", "", "a=b", "mail-type\n", "5"]
)
def test_names_of_options_are_long_options(option: str) -> None:
    with pytest.raises(ValueError, match=r"sbatch: .* is not a long option of sbatch, such as mail-type"):
        SlurmProfile(kind="slurm", sbatch={option: 1})


@pytest.mark.parametrize(("option", "field"), sorted(FIELD_BY_OPTION.items()))
def test_options_that_have_a_field_are_refused_with_its_name(option: str, field: str) -> None:
    assert f"sbatch: {option} is set by the profile's field {field}" in refusal(f"sbatch.{option}=1")
    assert field in SlurmProfile.model_fields


OURS_AT_LEAST = [
    "array",
    "job-name",
    "output",
    "error",
    "open-mode",
    "signal",
    "requeue",
    "no-requeue",
    "wrap",
    "test-only",
]
OURS_AT_LEAST += ["wait", "parsable", "quiet", "clusters"]  # with them sbatch does not return, or not with a number


@pytest.mark.parametrize("option", sorted({*RESERVED_OPTIONS, *OURS_AT_LEAST}))
def test_options_that_the_tool_sets_or_depends_on_are_refused(option: str) -> None:
    assert f"--launch-set sbatch.{option}=true: sbatch: {option} is set by ettsweep itself" in refusal(
        f"sbatch.{option}=true"
    )


@pytest.mark.parametrize("option", ["parti", "outp", "sig", "arr"])
def test_options_that_sbatch_would_complete_to_such_a_one_are_refused(option: str) -> None:
    assert "sbatch" in refusal(f"sbatch.{option}=x")


@pytest.mark.parametrize(
    "option", ["mem-per-cpu", "gpu-bind", "time-min", "nodelist", "exclude", "reservation", "gres"]
)
def test_options_that_only_begin_like_such_a_one_are_sbatchs_own(option: str) -> None:
    assert slurm(f"sbatch.{option}=x").sbatch == {option: "x"}


@pytest.mark.parametrize(
    ("time_min", "warn_s", "fits"),
    [(1, 59, True), (1, 60, False), (1, 120, False), (2, 59, True), (2, 60, False), (240, 120, True)],
)
def test_the_warning_before_the_end_of_a_job_comes_after_its_start(time_min: int, warn_s: int, fits: bool) -> None:
    overrides = (f"time_min={time_min}", f"warn_s={warn_s}")
    if fits:
        assert slurm(*overrides).warn_s == warn_s
    else:
        assert refusal(*overrides) == (
            f"mine.yaml with --launch-set time_min={time_min} --launch-set warn_s={warn_s}: warn_s: {warn_s} s before the end of a job of {time_min} min may be before its start"
        )


@pytest.mark.parametrize(("gpus", "workers"), [(0, 1), (1, 1), (4, 4)])
def test_a_job_has_a_worker_for_each_gpu_or_one_on_the_cpu(gpus: int, workers: int) -> None:
    assert slurm(f"gpus={gpus}").workers == workers


def test_a_file_beside_has_not_the_name_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slurm").touch()
    Path("mine.yaml").touch()
    assert choose_launch("slurm", [], []).profile == "slurm"
    assert choose_launch("mine.yaml", [], []).profile == str(tmp_path / "mine.yaml")


def test_what_is_typed_wins_over_where_the_sweeps_train() -> None:
    """Overrides belong to a profile: those of the sweeps go with another one, and are kept with their own."""
    one, same, other = (
        Sweep(name, (SweepEntry(launch=LaunchSettings(profile=profile, overrides=(f"slots={slots}", "threads=2"))),))
        for name, profile, slots in (("one", "mine", 1), ("same", "mine", 1), ("other", "yours", 3))
    )
    for sweeps, typed, expected in [
        ([], (None, []), ("local", ())),
        ([], (None, ["slots=2"]), ("local", ("slots=2",))),
        ([one, same], (None, []), ("mine", ("slots=1", "threads=2"))),
        ([one, same], (None, ["slots=2"]), ("mine", ("slots=2", "threads=2"))),
        ([one, other], ("theirs", ["slots=2", "slots=4"]), ("theirs", ("slots=4",))),
    ]:
        launch = choose_launch(*typed, sweeps)
        assert (launch.profile, launch.overrides) == expected
    with pytest.raises(InputError, match=r"one with mine slots=1 threads=2; other with yours slots=3"):
        choose_launch(None, [], [one, other])
    assert choose_launch(None, ["slots=5"], [one, other], is_new=True) == LaunchSettings(overrides=("slots=5",))
