"""A new environment with the core's dependencies alone: what a user without torch can do, and what the rest says."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
import venv
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
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment of links to what the core requires, and install this checkout's wheel into it."""
    pytest.importorskip("hatchling", reason="comes with the extra dev: make install")
    folder, dist = tmp_path_factory.mktemp("core"), tmp_path_factory.mktemp("dist")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    core = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    for installed in closure(core, {}).values():
        for top in {path.parts[0] for path in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists() and not top.endswith(".pth"):
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, *map(str, dist.glob("*.whl"))], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path


def run(python: Path, folder: Path, command: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "ETTSWEEP_SLOTS": str(folder / "slots"),
    }
    words = [python, "-m", "ettsweep", *shlex.split(command)]
    completed = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert completed.returncode == code, f"{command}: {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    assert "Traceback" not in completed.stderr
    return completed


def test_the_environment_has_the_wheel_and_no_extra(python: Path, tmp_path: Path) -> None:
    script = f"import ettsweep, importlib.util as u; print(ettsweep.__file__, [n for n in {EXTRAS} if u.find_spec(n)])"
    found = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    path, _, extras = found.rstrip().partition(" ")
    assert Path(path).is_relative_to(python.parents[1])
    assert extras == "[]"


@pytest.mark.slow
def test_a_script_without_torch_is_swept_to_a_verdict_and_a_report(python: Path, folder: Path) -> None:
    def ettsweep(command: str, code: int = 0) -> str:
        return run(python, folder, command, code).stdout

    ettsweep("init --command 'python train.py --lr 0.1 --wd 0.1 --seed 0' --out made.yaml")
    assert "start" in ettsweep("try sweep.yaml")
    ettsweep("grid sweep.yaml --launch-set slots=2 --follow")
    ettsweep("verify-optimum --follow")
    ettsweep("seeds --count 2 --follow")
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
    scores = [
        (2.0**i, 2.0**j, s, 1 + i * i + j * j + s / 100) for i in (-1, 0, 1) for j in (-1, 0, 1) for s in (0, 1, 2)
    ]
    (folder / "scores.csv").write_text("lr,wd,seed,score\n" + "".join(f"{a},{b},{s},{x}\n" for a, b, s, x in scores))
    assert "optimal" in ettsweep("verdict scores.csv --min")
    (folder / "a.csv").write_text("seed,score\n0,1.0\n1,1.1\n2,1.05\n")
    (folder / "b.csv").write_text("seed,score\n0,2.0\n1,2.1\n2,2.04\n")
    ettsweep("compare a.csv b.csv --min")


@pytest.mark.slow
def test_a_search_needs_no_extra(python: Path, folder: Path) -> None:
    run(python, folder, "search sweep.yaml --sampler tpe --trials 2 --launch-set slots=2 --follow --max-runs 3", 1)


@pytest.mark.parametrize(
    ("command", "needs"), [("grid", "torch"), pytest.param("train", "sklearn", marks=pytest.mark.slow)]
)
def test_what_needs_an_extra_says_so_in_a_sentence(python: Path, folder: Path, command: str, needs: str) -> None:
    message = run(python, folder, f"{command} --model vit-digits", 1).stderr
    assert f"needs {needs}, which is not installed: pip install 'ettsweep[train]'" in message
    assert not list(folder.glob("results/runs/*")), "nothing is submitted"
