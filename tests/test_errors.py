"""All errors of the package are in one module, which draws them as a tree."""

import ast
import re
from pathlib import Path

from ettsweep import errors


def classes(module: Path) -> dict[str, list[str]]:
    """Return the bases of each class that a module defines, inside functions too."""
    values = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ClassDef)]
    return {node.name: [ast.unparse(base) for base in node.bases] for node in values}


def test_no_other_module_defines_an_error() -> None:
    home = Path(errors.__file__)
    elsewhere = [
        f"{path}: {name}"
        for path in home.parent.rglob("*.py")
        for name, bases in classes(path).items()
        if path != home and any(re.search(r"(Error|Exception|Warning|Interrupt)$", token) for token in (name, *bases))
    ]
    assert not elsewhere


def test_the_tree_is_drawn_as_it_is() -> None:
    collected: dict[str, str] = {}
    above: list[str] = []
    for indent, name, code in re.findall(r"(?m)^ {4}([│├└─ ]*)(\w+Error)(?: +exit (\d+))?", errors.__doc__ or ""):
        depth = len(indent) // 4
        above[depth:] = [name]
        collected[name] = above[depth - 1] if depth else "Exception"
        assert not code or getattr(errors, name).exit_code == int(code)
    by_name = {name: bases[0] for name, bases in classes(Path(errors.__file__)).items()}
    outside = {name: base for name, base in by_name.items() if name not in collected}
    assert collected == {name: base for name, base in by_name.items() if name in collected}
    assert set(outside.values()) == {"Exception"}
    assert all(f" {name}" in (errors.__doc__ or "") for name in outside)
