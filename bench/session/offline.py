"""A session with the Python that is there: packages from a folder of wheels, and the checkout on the path."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def install(wheels: Path, target: Path) -> None:
    """Put what is in the wheels into a folder; where pip is missing, or refuses one, they are unpacked one by one."""
    paths = sorted(wheels.glob("*.whl"))
    if not paths:
        sys.exit(f"{wheels}: no wheels there; `make wheels WHEELS={wheels}` fetches them where there is a network")
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "install", *options, "--upgrade", "--target", str(target), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"pip does not install the wheels, so they are unpacked: {done.stderr.strip().splitlines()[-1]}")
        for path in paths:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(target)


def environment(work: Path, target: Path | None) -> dict[str, str]:
    """Return what tells other processes where packages are; caches and slots are this session's own."""
    folders = [*([target] if target else []), CHECKOUT, CHECKOUT / "tests"]
    path = [*map(str, folders), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "XDG_CACHE_HOME": str(work / "cache"),
        "ETTSWEEP_SLOTS": str(work / "slots"),
        "TMPDIR": str(work / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
