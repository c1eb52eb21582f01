"""Names in a results folder."""

from ettsweep.runs.paths import is_run_id


def test_only_ids_become_paths() -> None:
    assert is_run_id("0123456789ab")
    for name in ("0123456789AB", "0123456789a", "0123456789abc", "../456789abcd", "", "0123456789a\n"):
        assert not is_run_id(name), name
