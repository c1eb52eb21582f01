"""Which module may import which: the planner starts without torch, and the layers stay apart."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ettsweep

PACKAGE = Path(ettsweep.__file__).parent

LAYERS = [  # each may import those after it; those of one layer do not import each other
    {"__main__"},
    {"cli", "results"},
    {"check", "doctor"},
    {"report", "worker", "watch"},
    {"launch"},
    {"sweep", "training"},
    {"models", "tasks"},
    {"scaling"},
    {"runs"},
    {"spec"},
    {"schema", "config", "pool"},
    {"processes", "provenance"},
    {"files"},
    {"errors", "seeding", "output", "resources", "vocabulary"},
    {""},  # ettsweep/__init__.py
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("ettsweep", *path.relative_to(PACKAGE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def part(module: str) -> str:
    """Return the part of the package that a module belongs to: `sweep` for ettsweep.sweep.ledger."""
    return [*module.split("."), ""][1]


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


def test_every_module_has_a_layer() -> None:
    assert {part(name) for name in MODULES} == set(LEVEL)


def test_the_map_for_contributors_names_every_module() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    lines = text[text.index("    errors files") : text.index("A module imports only")]
    told: dict[str, str] = {}
    for entry in re.split(r"\n    (?! )", lines):
        folder, _, rest = entry.strip().partition("/ ")
        where = folder if rest else ""
        told[where] = f"{told.get(where, '')} {rest or entry}"
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.parent.relative_to(PACKAGE).as_posix().removeprefix(".")
        if path.name != "__init__.py" and not where.startswith("tasks/"):  # their folders are named
            assert re.search(rf"(?<!\w){path.stem}(?!\w)", told[where]), f"{where}/{path.name}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_the_layers(module: str) -> None:
    wrong = []
    for imported, top in imports(MODULES[module]):
        here, there = part(module), part(imported)
        if here == there:
            continue
        if LEVEL[there] <= LEVEL[here]:
            wrong.append(imported)
        if there == "training" and (here == "launch" or (here in ("worker", "cli") and top)):
            wrong.append(imported)
    assert not wrong


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Not even inside functions, or for type checkers."""
    graph = {name: {i for i, _ in imports(path) if i in MODULES} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def loaded(*names: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after importing some modules."""
    code = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_command_line_loads_no_heavy_package() -> None:
    heavy = {"torch", "pandas", "optuna", "pydantic", "submitit", "numpy", "matplotlib", "sklearn", "yaml"}
    assert not heavy & loaded("ettsweep.cli")


def test_the_planner_loads_no_torch() -> None:
    names = [
        n
        for n in MODULES
        if part(n) in ("sweep", "scaling", "spec", "runs", "errors", "output", "launch", "worker", "cli")
    ]
    names += ["ettsweep.models", "ettsweep.models.architectures", "ettsweep.models.scales"]
    names += ["ettsweep.models.cost"]
    names += ["ettsweep.tasks", "ettsweep.tasks.kinds"]
    assert not loaded(*names) & {"torch", "pandas", "optuna", "sklearn", "matplotlib"}


def test_a_report_is_made_and_results_are_loaded_without_torch() -> None:
    assert "torch" not in loaded(*[n for n in MODULES if part(n) in ("report", "results")])
