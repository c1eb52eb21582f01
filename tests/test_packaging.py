"""What is built from this checkout: what wheel and source hold, and what a user of the wheel without torch can do."""

import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.commandline import PATIENCE_S

CHECKOUT = Path(__file__).parents[1]

TRAIN = '''"""A bowl in (log2 lr, log2 wd) with noise, without torch."""
import json, math, os, random, sys
lr, wd, seed, out = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
assert not any(name in sys.modules for name in ("torch", "numpy"))
end = 1 + 0.1 * math.log2(lr / 0.25) ** 2 + 0.05 * math.log2(wd / 0.5) ** 2 + random.Random(seed).gauss(0, 0.002)
for step in range(1, 21):
    print("[ettsweep]", json.dumps({"step": step, "val_loss": end + 2.0**-step}), flush=True)
'''
SWEEP = """run:
  command: python train.py {lr} {wd} {seed} {out}
  score: {name: val_loss, mode: min}
  steps: 20
centre: {lr: 0.25, wd: 0.5}
lr: {range: [-1, 1]}
wd: fixed
seeds: [0, 1]
criterion: {margin: 10%}
"""
Distributions = dict[str, Distribution]

EXTRAS = ("torch", "torchvision", "timm", "sklearn", "tokenizers", "datasets", "vl_convert", "pyarrow", "cmaes")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build this checkout's wheel and source."""
    pytest.importorskip("hatchling", reason="comes with the extra dev: make install")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    return folder


def test_wheel_and_source_hold_what_they_need_and_nothing_else(dist: Path) -> None:
    def files(*patterns: str) -> set[str]:
        return {path.relative_to(CHECKOUT).as_posix() for pattern in patterns for path in CHECKOUT.glob(pattern)}

    modules = files("ettsweep/**/*.py", "ettsweep/py.typed", "ettsweep/llms.txt", "ettsweep/watch/*.tcss")
    modules |= files("ettsweep/readers/data/*.yaml", "ettsweep/report/vega-licences.txt")
    modules |= files(*(f"ettsweep/report/*.{ending}" for ending in ("j2", "css", "js")))
    shipped = files("grids/*.yaml", "launch/*.yaml")
    (wheel,) = dist.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == modules | {f"ettsweep/_data/{name}" for name in shipped}

    beside = files("tests/**/*.py", "tests/devcluster/*", "bench/*.py", "docs/*", "results/benchmarks/*", "*.md")
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert names >= modules | shipped | beside | {"Makefile", "LICENSE", "pyproject.toml"}


# --- without the extras -----------------------------------------------------------------------------------------------


def closure(requirements: list[str], found: Distributions, extras: Iterable[str] = ("",)) -> Distributions:
    """Return the distributions that requirements name, with all that these require, as installed here."""
    for requirement in map(Requirement, requirements):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        is_wanted = not requirement.marker or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted and (name not in found or requirement.extras):
            found[name] = distribution(name)
            closure(found[name].requires or [], found, requirement.extras or ("",))
    return found


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment of links to what the core requires, and install the wheel into it."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    core = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    for installed in closure(core, {}).values():
        for top in {path.parts[0] for path in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists() and not top.endswith(".pth"):
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, *map(str, dist.glob("*.whl"))], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path


def run(python: Path, folder: Path, command: str, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "ETTSWEEP_SLOTS": str(folder / "slots"),
    }
    words = [python, "-m", "ettsweep", *shlex.split(command)]
    completed = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert code in (None, completed.returncode), (
        f"{command}: {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    )
    assert "Traceback" not in completed.stderr
    return completed


def test_the_environment_has_the_wheel_and_no_extra(python: Path, tmp_path: Path) -> None:
    script = f"import ettsweep, importlib.util as u; print(ettsweep.__file__, [n for n in {EXTRAS} if u.find_spec(n)])"
    found = subprocess.run(
        [python, "-I", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    path, _, extras = found.rstrip().partition(" ")
    assert Path(path).is_relative_to(python.parents[1])
    assert extras == "[]"


@pytest.mark.slow
def test_a_script_without_torch_is_swept_to_a_verdict_and_a_report(python: Path, folder: Path) -> None:
    def ettsweep(command: str, code: int | None = 0) -> str:
        return run(python, folder, command, code).stdout

    ettsweep("init --command 'python train.py --lr 0.1 --wd 0.1 --seed 0' --out made.yaml")
    assert "start" in ettsweep("try sweep.yaml")
    ettsweep("grid sweep.yaml --launch-set slots=2 --follow")
    ettsweep("search sweep.yaml --sampler tpe --trials 2 --launch-set slots=2 --follow --max-runs 3", None)
    ettsweep("verify-optimum --follow")
    rows = json.loads(ettsweep("status --format json"))
    assert {row["state"] for row in rows} == {"done"}
    report = run(python, folder, "report")
    assert "needs vl_convert, which is not installed: pip install 'ettsweep[figures]'" in report.stderr
    page = (folder / "results" / "report" / "report.html").read_text()
    assert "vegaEmbed" in page
    tables = {path.name for path in (folder / "results" / "report" / "tables").iterdir()}
    assert {"runs.csv", "points.csv", "optima.csv"} <= tables
    assert not any(name.endswith(".parquet") for name in tables)
    assert "runs finished" in run(python, folder, "watch").stderr
    scores = "".join(f"{2.0**i},{s},{1 + i * i + s / 100}\n" for i in (-1, 0, 1) for s in (0, 1, 2))
    (folder / "scores.csv").write_text(f"lr,seed,score\n{scores}")
    assert "optimal" in ettsweep("verdict scores.csv --min")


def test_what_needs_an_extra_says_so_in_a_sentence(python: Path, folder: Path) -> None:
    message = run(python, folder, "grid --model vit-digits", 1).stderr
    assert "needs torch, which is not installed: pip install 'ettsweep[train]'" in message
    assert not list(folder.glob("results/runs/*")), "nothing is submitted"
