"""Fetch the wheels that `make bench-all-gpu WHEELS=DIR` needs beside torch: `make wheels WHEELS=DIR PYTHON_VERSION=3.12`.

They are of the versions that are installed here, for another Python, on Linux. What images with torch bring is left out,
and with it torchvision, which has to be of the torch that is there.
"""

import argparse
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

NEEDED = ("typer", "rich", "submitit", "pydantic", "PyYAML", "tabulate", "timm", "transformers")
DATA = ("scikit-learn",)
"""Of which a file of digits is read, and nothing imported: its own needs are not."""

BROUGHT = ("torch", "torchvision", "numpy", "pillow")
SPARE = ("hf-xet",)
"""Of what others ask for, what nobody imports here."""

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
MOST_MIB = 64.0


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots: Iterable[str], python_version: str, without: frozenset[str] = frozenset()) -> set[str]:
    """Return what packages need, themselves included, as far as it is installed here."""
    found: set[str] = set()
    waiting = [canonical(root) for root in roots]
    while waiting:
        name = waiting.pop()
        if name in found or name in without:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        asked = map(Requirement, requires)
        marks = {"python_version": python_version, "python_full_version": f"{python_version}.0", "extra": ""}
        waiting += [canonical(one.name) for one in asked if not one.marker or one.marker.evaluate(marks)]
    return found


def wanted(python_version: str) -> list[str]:
    """Return what to fetch, each with the version that is installed here."""
    brought = closure(BROUGHT, python_version)
    names = closure(NEEDED, python_version, frozenset(brought | set(SPARE))) | set(DATA)
    return [f"{name}=={importlib.metadata.version(name)}" for name in sorted(names)]


def main() -> None:
    """Fetch them, and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-version", default="3.12")
    parser.add_argument("--only", nargs="*", help="these, such as pydantic==2.14.3, instead of all that may be needed")
    asked = parser.parse_args()
    names = asked.only or wanted(asked.python_version)
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={asked.python_version}"]
    target += [f"--platform={platform}" for platform in PLATFORMS]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *target,
        "-d",
        str(asked.folder),
        *names,
    ]
    print(" ".join(command), flush=True)
    if subprocess.run(command, check=False).returncode:
        sys.exit(1)
    sizes = {path.name: path.stat().st_size / 2**20 for path in sorted(asked.folder.glob("*.whl"))}
    for name, mib in sizes.items():
        print(f"{mib:6.1f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total:6.1f} MiB in all")
    if total > MOST_MIB:
        sys.exit(f"more than {MOST_MIB:.0f} MiB: leave some out with --only, or remove old ones from {asked.folder}")


if __name__ == "__main__":
    main()
