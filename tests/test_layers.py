"""Which module may import which: the planner starts without torch, and the layers stay apart."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ettsweep

PACKAGE = Path(ettsweep.__file__).parent

LAYERS = [  # each may import those after it; those of one layer do not import each other
    {"__main__"},
    {"cli", "results"},
    {"theory", "doctor", "watch"},
    {"report", "worker", "trainer.__main__", "trainer.torchrun"},
    {"launch", "trainer.ensemble"},
    {"study", "trainer.training"},
    {"kinds"},
    {"trainer.recipe"},
    {"trainer.models", "trainer.tasks"},
    {"trainer.specs"},
    {"strategies"},
    {"runs", "readers"},
    {"project_code"},
    {"schema", "config", "process_pool", "call", "trainer.device"},
    {"processes", "provenance", "file_digests"},
    {"ownership"},
    {"console"},
    {"table_layout"},
    {"quantities"},
    {"metric"},
    {"files", "extras", "patterns"},
    {"errors", "seeding", "cgroups", "shipped_files", "token_ids", "trainer", "run", "units"},
    {"powers"},
    {""},  # ettsweep/__init__.py
]
PLANNER_AND_VIEWS = {"study", "launch", "runs", "report", "watch", "cli", "results"}
"""They know runs by their contract alone (runs/spec.py), and no kind by its module."""

LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def modules() -> dict[str, Path]:
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("ettsweep", *path.relative_to(PACKAGE).with_suffix("").parts))
        paths[name.removesuffix(".__init__")] = path
    return paths


MODULES = modules()


def part(module: str) -> str:
    """Return the part of the package that a module belongs to: `runs` for ettsweep.runs.index."""
    name = [*module.split("."), ""][1]
    if name != "trainer" or module == "ettsweep.trainer":
        return name
    return f"trainer.{module.split('.')[2]}"


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (module of ours, whether at module level) for each import; one for type checkers is none at module level."""

    def visit(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top) for alias in child.names if ours(alias.name))
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                if ours(child.module or ""):
                    for alias in child.names:
                        full = f"{child.module}.{alias.name}"
                        yield (full if full in MODULES else str(child.module)), top
            else:
                inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                inner |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, top and not inner)

    yield from visit(ast.parse(path.read_text()), True)


def ours(module: str) -> bool:
    return module.split(".")[0] == "ettsweep"


def test_modules_import_downwards_and_never_in_a_circle() -> None:
    """Not even inside functions, or for type checkers."""
    assert {part(name) for name in MODULES} == set(LEVEL)
    wrong, graph = [], {}
    for module, path in MODULES.items():
        graph[module] = set()
        for imported, _ in imports(path):
            if imported in MODULES:
                graph[module].add(imported)
            local, existing = part(module), part(imported)
            trains = existing in ("trainer.training", "trainer.ensemble") and local == "worker"
            knows = existing.startswith(("trainer", "kinds")) and local in PLANNER_AND_VIEWS
            if local != existing and (LEVEL[existing] <= LEVEL[local] or trains or knows):
                wrong.append(f"{module} imports {imported}")
    assert not wrong
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def loaded(*names: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after importing some modules."""
    code = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(completed.stdout.split())


def test_importing_the_command_line_loads_no_heavy_package() -> None:
    heavy = {"torch", "pandas", "optuna", "pydantic", "submitit", "numpy", "altair", "sklearn", "yaml"}
    assert not heavy & loaded("ettsweep.cli")


def test_what_plans_and_reports_loads_no_torch() -> None:
    planner = {"study", "strategies", "runs", "errors", "console", "kinds", "launch", "worker", "cli"}
    names = [name for name in MODULES if part(name) in planner]
    names += [f"ettsweep.trainer.{name}" for name in ("models.registry", "models.model_cost", "tasks.registry")]
    assert not loaded(*names) & {"torch", "pandas", "optuna", "sklearn", "altair", "textual"}
    reporting = loaded(*[name for name in MODULES if part(name) in ("report", "results")])
    assert not reporting & {"torch", "altair"}, "figures are JSON; altair makes charts of them in notebooks alone"
