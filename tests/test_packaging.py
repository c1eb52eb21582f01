"""What is built from this checkout: the wheel that is installed, and the source that is passed on."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def test_wheel_and_source_hold_what_they_need_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="comes with the extra dev: make install")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)

    def files(*patterns: str) -> set[str]:
        return {path.relative_to(CHECKOUT).as_posix() for pattern in patterns for path in CHECKOUT.glob(pattern)}

    modules = files(
        "ettsweep/**/*.py",
        "ettsweep/py.typed",
        "ettsweep/llms.txt",
        "ettsweep/watch/*.tcss",
        "ettsweep/readers/data/*.yaml",
        "ettsweep/report/*.j2",
        "ettsweep/report/*.css",
        "ettsweep/report/*.js",
        "ettsweep/report/vega-licences.txt",
    )
    shipped = files("grids/*.yaml", "launch/*.yaml")
    (wheel,) = tmp_path.glob("*.whl")
    values = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert values == modules | {f"ettsweep/_data/{name}" for name in shipped}

    beside = files(
        "tests/**/*.py",
        "tests/devcluster/*",
        "bench/*.py",
        "docs/*",
        "results/benchmarks/*",
        "*.md",
        "Makefile",
        "LICENSE",
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert names >= modules | shipped | beside | {"pyproject.toml"}
