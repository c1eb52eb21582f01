import os
from pathlib import Path

import pytest

from ettsweep.errors import InputError, StorageError
from ettsweep.launch.profiles import LocalProfile, Slot, find_profile, load_profile, visible_gpus
from ettsweep.launch.slots import free_first, hold_slot, slot_dir
from ettsweep.resources import shipped

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the GPUs of this machine, and run beside no launch profiles."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


# --- slots ----------------------------------------------------------------------------------------------------------


def test_without_gpus_there_is_a_slot_for_each_core_with_one_thread() -> None:
    slots = LocalProfile().resolve()
    assert slots == [Slot(f"cpu-{number}", "cpu", None, 1) for number in range(CORES)]


def test_slots_share_the_cores_among_them() -> None:
    (slot,) = LocalProfile(slots=1).resolve()
    assert slot == Slot("cpu-0", "cpu", None, CORES)
    many = LocalProfile(slots=CORES + 3).resolve()
    assert len(many) == CORES + 3
    assert {slot.threads for slot in many} == {1}


def test_gpus_share_the_cores_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16 + pid)))
    assert {slot.threads for slot in LocalProfile(devices=[0, 2], slots=7).resolve()} == {8}


def test_threads_can_be_given() -> None:
    assert {slot.threads for slot in LocalProfile(slots=2, threads=5).resolve()} == {5}


def test_there_is_a_slot_for_each_gpu_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")  # numbers count what this process may use
    slots = LocalProfile(devices=[0, 2], slots=7, threads=3).resolve()
    assert slots == [Slot("gpu-4", "cuda", "4", 3), Slot("gpu-6", "cuda", "6", 3)]


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="devices: there is no GPU 1; 0 found here"):
        LocalProfile(devices=[1]).resolve()


@pytest.mark.parametrize(
    ("value", "gpus"),
    [("", []), ("-1", []), ("0", ["0"]), ("3,1", ["3", "1"]), (" 0 , 1 ", ["0", "1"]), ("GPU-ab12", ["GPU-ab12"])],
)
def test_auto_takes_the_gpus_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, value: str, gpus: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus
    found = [slot.gpu for slot in LocalProfile().resolve() if slot.device == "cuda"]
    assert found == gpus
    assert all(slot.device == "cpu" for slot in LocalProfile(devices="cpu").resolve())


def test_gpus_are_named_by_the_driver_so_that_all_commands_meet_at_one_slot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-a1)'\necho '  MIG 1g (UUID: MIG-1)'\necho 'GPU 1: H200 (UUID: GPU-b2)'\n"
    )
    tool.chmod(0o755)
    assert [slot.gpu for slot in LocalProfile().resolve()] == ["GPU-a1", "GPU-b2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == ["GPU-b2"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool.write_text("#!/bin/sh\necho 'GPU 0: stale (UUID: GPU-a1)'\nexit 9\n")
    assert visible_gpus() == []


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
    slots = LocalProfile(devices=[1, 0], threads=2).resolve()
    assert slots == [
        Slot("gpu-GPU-bbbb-2", "cuda", "GPU-bbbb-2", 2),
        Slot("gpu-GPU-aaaa-1", "cuda", "GPU-aaaa-1", 2),
    ]


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_the_driver_does_not_list_is_refused() -> None:
    with pytest.raises(InputError) as error:
        LocalProfile(devices=[0, 2]).resolve()
    assert str(error.value) == "devices: there is no GPU 2; 2 found here (`devices: cpu` uses none)"


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_hidden_from_this_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [slot.gpu for slot in LocalProfile(devices=[0]).resolve()] == ["GPU-bbbb-2"]
    with pytest.raises(InputError, match="devices: there is no GPU 1; 1 found here"):
        LocalProfile(devices=[1]).resolve()


# --- locks of slots -------------------------------------------------------------------------------------------------


def test_slot_locks_lie_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        monkeypatch.setenv("ETTSWEEP_SLOTS", str(tmp_path / name))
        assert slot_dir() == tmp_path / name
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("value", [None, ""])
def test_slot_locks_of_a_user_lie_in_one_place_by_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("ETTSWEEP_SLOTS")
    else:
        monkeypatch.setenv("ETTSWEEP_SLOTS", value)
    assert slot_dir() == Path(f"/tmp/ettsweep-{os.getuid()}")


def test_slot_locks_of_someone_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    (tmp_path / "link").symlink_to(slots)
    monkeypatch.setenv("ETTSWEEP_SLOTS", str(tmp_path / "link"))
    with pytest.raises(StorageError, match=r"link: belongs to another user; .*set ETTSWEEP_SLOTS"):
        slot_dir()
    monkeypatch.setenv("ETTSWEEP_SLOTS", str(slots))
    monkeypatch.setattr(os, "getuid", lambda: slots.stat().st_uid + 1)
    with pytest.raises(StorageError, match=r"slots: belongs to another user; .*set ETTSWEEP_SLOTS"):
        slot_dir()


def test_a_slot_is_held_once_and_free_ones_come_first() -> None:
    slots = LocalProfile(slots=3).resolve()
    lock = hold_slot(slots[0], wait=False)
    assert lock is not None
    assert hold_slot(slots[0], wait=False) is None
    assert free_first(slots) == [slots[1], slots[2], slots[0]]
    os.close(lock)
    assert free_first(slots) == slots


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(shipped("launch").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profiles_are_valid(path: Path) -> None:
    assert find_profile(path.stem) == path
    assert load_profile(path.stem).kind in path.read_text()


def test_a_profile_of_ones_own_wins_over_the_shipped_one() -> None:
    Path("launch").mkdir()
    Path("launch/local.yaml").write_text("slots: 3\nthreads: 1\n")
    assert load_profile("local") == LocalProfile(slots=3, threads=1)


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
        ("partition=debug", "partition: unknown key"),
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
