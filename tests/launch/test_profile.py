import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import InputError, StorageError
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import choose_launch, find_profile, load_profile
from ettsweep.launch.slots import Slot, lock_slot, make_lock_dir, sort_free_first, unlock
from ettsweep.launch.slurm import SlurmProfile
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


def test_workers_share_gpus_as_evenly_as_can_be_and_each_has_a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    def workers(**profile: Any) -> list[tuple[str, str | None, int]]:
        return [(slot.name, slot.gpu, slot.sharers) for slot in LocalProfile(**profile).resolve_slots()]

    values = [("gpu-4", "4", 2), ("gpu-5", "5", 2), ("gpu-4.2", "4", 2), ("gpu-5.2", "5", 2)]
    assert workers(slots=4) == workers(workers_per_device=2) == values
    assert workers(slots=3) == [("gpu-4", "4", 2), ("gpu-5", "5", 1), ("gpu-4.2", "4", 2)]
    assert workers(workers_per_device=2, devices=[1]) == [("gpu-5", "5", 2), ("gpu-5.2", "5", 2)]
    with pytest.raises(InputError, match="devices_per_run: 2 requested, but only 1 available"):
        LocalProfile(slots=1, devices_per_run=2).resolve_slots()
    with pytest.raises(InputError, match="slots: 4 workers cannot share 2 GPUs if devices_per_run is 2"):
        LocalProfile(slots=4, devices_per_run=2).resolve_slots()


def test_slot_locks_of_someone_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, link, uid = tmp_path / "slots", tmp_path / "link", os.getuid()
    slots.mkdir()
    link.symlink_to(slots)
    for folder, user in ((link, uid), (slots, uid + 1)):
        monkeypatch.setenv("ETTSWEEP_SLOTS", str(folder))
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        with pytest.raises(StorageError, match=f"{folder.name}: belongs to another user; .*set ETTSWEEP_SLOTS"):
            make_lock_dir()


def test_a_slot_is_held_once_a_group_of_them_whole_or_not_at_all_and_free_ones_come_first() -> None:
    here = Path("results")
    (pair,) = LocalProfile(slots=2, devices_per_run=2).resolve_slots()
    first, second = LocalProfile(slots=2).resolve_slots()
    lock = lock_slot(second, here, wait=False)
    assert lock is not None
    assert lock_slot(second, here, wait=False) is lock_slot(pair, here, wait=False) is None
    assert sort_free_first([second, first]) == [first, second], "the pair did not keep the first"
    unlock(lock)
    assert sort_free_first([first, second]) == [first, second]
    lock = lock_slot(pair, here, wait=False)
    assert lock is not None
    assert lock_slot(first, here, wait=False) is lock_slot(second, here, wait=False) is None
    unlock(lock)


def test_slots_train_a_run_together_in_groups_of_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    groups = LocalProfile(devices_per_run=3, threads=1).resolve_slots()
    assert [[slot.gpu, *(other.gpu for other in slot.others)] for slot in groups] == [["0", "1", "2"], ["3", "4", "5"]]
    assert all(not other.others for slot in groups for other in slot.others)
    (pair,) = LocalProfile(devices="cpu", slots=2, devices_per_run=2, threads=1).resolve_slots()
    assert (pair.name, [other.name for other in pair.others]) == ("cpu-0", ["cpu-1"])
    assert Slot.from_json(json.loads(json.dumps(asdict(pair)))) == pair


def test_the_room_of_a_run_is_that_of_its_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gib = 2**30
    assert slurm("gpus=0", "mem_gb=8", "nodes=2").memory_limit() == (16 * gib, "2 nodes with that mem_gb")
    assert slurm("gpus=4", "devices_per_run=4").memory_limit() == (2**12 * gib, "4 GPUs")
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *memory.total*) printf "81920\\n40960\\n";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert LocalProfile(devices_per_run=2).memory_limit() == (160 * gib, "2 GPUs of this machine")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(shipped("launch").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profiles_are_valid(path: Path) -> None:
    assert find_profile(path.stem) == path
    assert load_profile(path.stem).kind in path.read_text()


def test_overrides_win_over_the_file() -> None:
    Path("mine.yaml").write_text("slots: 3\n")
    profile = load_profile("mine.yaml", ["slots=1", "devices=[0, 1]", "checkpoint_every_steps=5", "threads=auto"])
    assert profile == LocalProfile(slots=1, devices=[0, 1], checkpoint_every_steps=5)


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown launch profile 'loacl'; did you mean 'local'"):
        load_profile("loacl")
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such launch profile"):
        load_profile("nowhere.yaml")


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        ("local", "slots=0", "slots: a whole number of at least 1, or auto, is expected, got 0"),
        ("local", "devices=[-1]", "devices: auto, cpu or a list of GPU numbers is expected, got [-1]"),
        ("local", "checkpoint_every_s=-1", "checkpoint_every_s: input should be greater than or equal to 0, got -1"),
        ("local", "partition=debug", "partition: unknown key of kind local; set `kind: slurm` for it"),
        ("local", "slosts=2", "slosts: unknown key; did you mean slots?"),
        ("local", "slots", "key=value is expected"),
        ("slurm", "time_min=4:00:00", "time_min: input should be a valid integer, got '4:00:00'"),
        ("slurm", "time=60", "time: unknown key; did you mean time_min?"),
        ("slurm", "slots=2", "slots: unknown key of kind slurm; set `kind: local` for it"),
        ("slurm", "mem_gb=32G", "mem_gb: input should be a valid number, got '32G'"),
        ("slurm", "setup=module load cuda", "setup: input should be a valid tuple, got 'module load cuda'"),
        ("slurm", "sbatch.mail-type={a: 1}", "sbatch.mail-type: a word or a number is expected, got {'a': 1}"),
        ("slurm", "kind=cloud", "kind: unknown kind 'cloud'. Known: local, slurm"),
        ("slurm", "sbatch.=1", "key=value is expected"),
        ("slurm", "ensemble=8", "ensemble: belongs to the block trainer; write trainer.ensemble"),
        ("slurm", "trainer.ensmeble=8", "trainer.ensmeble: unknown key; did you mean trainer.ensemble?"),
    ],
)
def test_bad_values_are_refused(kind: str, override: str, message: str) -> None:
    assert refusal(override, text=f"kind: {kind}\n").startswith(f"--launch-set {override}: {message}")


def test_a_bad_value_of_a_file_is_told_with_its_name() -> None:
    assert refusal(text="kind: slurm\ntime_min: 0\n").startswith("mine.yaml: time_min: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["slots=2", "workers_per_device=2"], "slots and workers_per_device both set the number of workers"),
        (["devices_per_run=2", "workers_per_device=2"], "must be 1 with devices_per_run > 1"),
        (["slots=100000"], "--launch-set slots=100000: slots: at most "),
        (["devices=[0, 1, 0]"], "devices: GPU 0 occurs twice; for two workers on each GPU"),
        (["threads=100000", "trainer.loader_workers=100000"], "trainer.loader_workers: at most "),
    ],
)
def test_settings_that_contradict_each_other_or_this_machine_are_refused(overrides: list[str], message: str) -> None:
    assert message in refusal(*overrides, text="kind: local\n")
    assert load_profile("slurm", ["trainer.loader_workers=100000"]).kind == "slurm"  # that machine is another one


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


def test_a_profile_keeps_the_words_of_its_file_and_shows_no_value_of_a_variable() -> None:
    Path("mine.yaml").write_text(
        """
kind: slurm
account: "0123"
setup: [module load cuda, "source '/a b/activate'"]
environment: {A: 1, B_2: two words, C: true, D: "1.10"}
sbatch: {mail-type: END, exclusive: true, hold: false, nice: 5, begin: 16:00:00}
trainer: {corrupt_images: fail, log: [tensorboard]}
"""
    )
    profile = load_profile("mine.yaml")
    assert isinstance(profile, SlurmProfile)
    assert profile.environment == {"A": 1, "B_2": "two words", "C": True, "D": "1.10"}
    assert "two words" not in repr(profile)
    dumped = profile.model_dump()
    assert dumped["environment"] == dict.fromkeys(("A", "B_2", "C", "D"), "***")
    assert (dumped["account"], dumped["setup"]) == ("0123", ("module load cuda", "source '/a b/activate'"))
    assert dumped["sbatch"] == {"mail-type": "END", "exclusive": True, "hold": False, "nice": 5, "begin": "16:00:00"}
    assert (profile.trainer.corrupt_images, profile.trainer.log) == ("fail", ("tensorboard",))


@pytest.mark.parametrize("value", ["a\n#SBATCH --x", "a\x1b[0m", "a\u2028b"])
@pytest.mark.parametrize("field", ["partition", "python", "setup", "environment", "sbatch"])
def test_what_would_end_a_line_of_the_script_is_refused(field: str, value: str) -> None:
    values: dict[str, Any] = {"setup": [value], "environment": {"A": value}, "sbatch": {"comment": value}}
    with pytest.raises(ValueError, match=f"(?s){field}.* (must be|is expected)"):
        SlurmProfile(kind="slurm", **{field: values.get(field, value)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("TOKEN=hunter2", "must be names with values, such as {NCCL_SOCKET_IFNAME: ib0}"),
        ("{TOKEN=hunter2: 1}", "'TOKEN' is not a name of a variable"),
        ("{TOKEN: [hunter2]}", "TOKEN: must be a word or a number on one line"),
        ("{TOKEN: 12.50}", "TOKEN: put the number in quotes, since YAML may change it"),
        ("{TOKEN: *hunter2}", "found undefined alias"),
        ("{TOKEN: 2024-12-50}", "a date, number or value with !! is not valid; put quotes around it"),
        ("{TOKEN: {hunter2", "expected ',' or '}'"),
    ],
)
def test_what_is_wrong_with_variables_is_said_without_their_values(value: str, text: str) -> None:
    values = refusal(f"environment={value}"), refusal(text=f"kind: slurm\nenvironment: {value}\n")
    if value.startswith("{TOKEN: "):
        values += (refusal(f"environment.TOKEN={value.removeprefix('{TOKEN: ').removesuffix('}')}"),)
    for message in values:
        assert text in message
        assert not {"hunter2", "12.5", "12.50", "2024"} & set(re.findall(r"[\w.]+", message))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("environment.TOKEN=***", "sweeps do not store this value, which may be a secret; pass it again"),
        ("environment.A.B=1", "'A.B' is not a name of a variable"),
        ("sbatch.wait=true", "sbatch: leave out wait: ettsweep sets it"),  # sbatch would not return
        ("sbatch.gpus-per-node=1", "sbatch: gpus-per-node: set the profile's field gpus instead"),
        ("sbatch.mail_type=END", "'mail_type' is not a long option of sbatch"),
        ("sbatch.sig=x", "leave out sig: ettsweep sets it"),  # sbatch would complete it
    ],
)
def test_variables_and_options_that_would_do_harm_are_refused(override: str, message: str) -> None:
    assert message in refusal(override)


def test_the_warning_before_the_end_of_a_job_comes_after_its_start() -> None:
    assert slurm("time_min=1", "warn_s=59").warn_s == slurm("time_min=2", "warn_s=59").warn_s == 59
    for time_min in (1, 2):
        told = refusal(f"time_min={time_min}", "warn_s=60")
        assert f"warn_s: 60 s is too long for jobs of {time_min} min: SLURM may signal a minute earlier" in told


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
