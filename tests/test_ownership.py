"""Who else may write to a folder: real owners, groups and modes; file systems that keep none are imitated."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ettsweep import ownership
from ettsweep.errors import InputError
from ettsweep.ownership import check_folder, check_run_folder, trust_group

GROUP, OTHER = 54321, 54323

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")


@pytest.fixture(autouse=True)
def untrusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ownership.TRUST_VARIABLE, "0")  # it is not there after a test, whatever that sets
    ownership._kept_by.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "lab" / "results"
    (made / "sweeps").mkdir(parents=True)
    (made / "sweeps" / "a.yaml").touch()
    return made


def give(path: Path, mode: int, owner: int = 0) -> None:
    """Have a path belong to the group, and to this user or another."""
    os.chown(path, owner, GROUP)
    path.chmod(mode)


def refusal(folder: Path, *, whole: bool = False) -> str:
    with pytest.raises(InputError) as refused:
        check_folder(folder, whole=whole)
    return str(refused.value)


def test_a_folder_of_a_group_is_refused_in_a_sentence_with_both_ways_on(folder: Path) -> None:
    check_folder(folder, whole=True)
    give(folder, 0o2775)
    assert refusal(folder) == (
        f"{folder} can be written by group {GROUP}, and ettsweep executes files in {folder}: remove that right "
        f"(`chmod -R g-w {folder}`), or trust the group with --trust-group"
    )
    subprocess.run(["chmod", "-R", "g-w", folder], check=True)
    check_folder(folder, whole=True)


def test_a_file_of_a_group_counts_where_a_whole_folder_is_checked(folder: Path) -> None:
    file = folder / "sweeps" / "a.yaml"
    give(file, 0o664)
    check_folder(folder)
    assert f"{file} can be written by group {GROUP}" in refusal(folder, whole=True)


def test_a_folder_above_counts_unless_it_is_sticky(folder: Path) -> None:
    """As /tmp: whoever may write there cannot put another folder in place of this one."""
    lab = folder.parent
    for mode, bits in ((0o775, "g-w"), (0o777, "go-w")):
        for each in (folder, folder / "new"):
            give(lab, mode)
            assert f"(`chmod {bits} {lab}`)" in refusal(each)
            lab.chmod(mode | 0o1000)
            check_folder(each)
    assert f"{lab} can be written by all users" in refusal(lab)
    assert "use a folder of yours in it" in refusal(lab)


def test_the_folder_that_a_link_lies_in_counts_too(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(folder)
    check_folder(shared / "link")
    shared.chmod(0o777)
    assert f"{shared} can be written by all users" in refusal(shared / "link")


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    give(folder, 0o755, OTHER)
    assert f"{folder} belongs to user {OTHER}, and ettsweep executes" in refusal(folder)


def test_a_trusted_group_may_own_and_write_but_not_all_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ownership.TRUST_VARIABLE, "1")
    give(folder, 0o2775, OTHER)
    check_folder(folder, whole=True)
    folder.chmod(0o2777)
    assert f"(`chmod -R go-w {folder}`), or use a folder of yours" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "members", "gid", "is_private"),
    [
        ("ann", ["ann"], GROUP, True),
        ("ann", ["ann", "bob"], GROUP, False),
        ("lab", [], GROUP, False),
        ("ann", [], GROUP + 1, False),
    ],
    ids=["the owner", "a member", "another name", "not primary"],
)
def test_a_users_private_group_is_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], gid: int, is_private: bool
) -> None:
    """As with a umask of 002, where each user has a group of their own."""
    user = SimpleNamespace(pw_name="ann", pw_gid=GROUP)
    group = SimpleNamespace(gr_name=name, gr_gid=gid, gr_mem=members)
    monkeypatch.setattr(ownership, "pwd", SimpleNamespace(getpwuid=lambda uid: user))
    monkeypatch.setattr(ownership, "grp", SimpleNamespace(getgrgid=lambda gid: group))
    folder.chmod(0o775)
    if is_private:
        check_folder(folder)
    else:
        assert "can be written by group" in refusal(folder)


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="needs setfacl")
def test_an_access_list_lets_others_write_beside_a_private_group(folder: Path) -> None:
    folder.chmod(0o775)
    check_folder(folder)
    if subprocess.run(["setfacl", "-m", f"u:{OTHER}:rwx", folder], capture_output=True).returncode:
        pytest.skip("this file system has no access lists")
    assert "can be written by group" in refusal(folder)


@pytest.mark.parametrize(("shown", "owner", "mode"), [((OTHER, True), OTHER, 0o755), ((0, False), 0, 0o777)])
def test_file_systems_that_show_one_owner_or_mode_for_all_are_not_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shown: tuple[int, bool], owner: int, mode: int
) -> None:
    """As some mounts by sshfs and SMB do: what this user makes looks the same there."""
    give(folder, mode, owner)
    refusal(folder)
    monkeypatch.setattr(ownership, "_kept_by", lambda path, device: shown)
    check_folder(folder)


@pytest.mark.parametrize("name", ["out", "attempts/0001", "spec.json"])
def test_a_link_in_the_folder_of_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(ownership.TRUST_VARIABLE, "1")
    run, elsewhere = tmp_path / "0123456789ab", tmp_path / "elsewhere"
    for folder in (elsewhere, run / "out", run / "attempts"):
        folder.mkdir(parents=True)
    (run / "out" / "last.ckpt").symlink_to(elsewhere)  # its program's own
    check_run_folder(run)
    shutil.rmtree(run / "out")
    (run / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"^{run / name} is a link"):
        check_run_folder(run)


def test_what_is_made_is_not_writable_for_an_untrusted_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "UMASK", 0o002)
    before = os.umask(0o002)
    try:
        for trusted, mode in ((False, 0o755), (True, 0o775)):
            trust_group(trusted)
            (tmp_path / str(trusted)).mkdir()
            assert (tmp_path / str(trusted)).stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
