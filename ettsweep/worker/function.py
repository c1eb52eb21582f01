"""Any Python function as the run: `run: {function: package.module:name}` in a grid file."""

import ast
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.metric import Metric
from ettsweep.runs.trainable import Labels, RunContext, ScoreSpec, Size, StatedScore, Trainable, override_block
from ettsweep.schema import ListOfOne, NotInId, Positive, StrictModel, canonical, locating, validate

DIGEST_DIGITS = 12
"""Hex digits of a digest of code in a spec."""


class FunctionBlock(StrictModel):
    """What stands under `run:` in a grid file; see `FunctionRecipe`."""

    function: str
    arguments: dict[str, Any] = Field(default_factory=dict, alias="with")
    score: StatedScore
    steps: Positive | None = None
    width: Positive | None = None
    factors: Literal["adamw", "sgd"] = "adamw"
    code: Annotated[tuple[str, ...], Field(strict=False), ListOfOne] = ()

    def fields(self) -> dict[str, Any]:
        """Return the fields of the recipe."""
        names = {"steps": "last_step", "code": "files"}
        return {names.get(name, name): value for name, value in self}


class FunctionRecipe(Trainable):
    """A function that is called with a `RunContext` and the fields under `with:`.

    Attributes:
        function: module and name, such as `mypackage.train:main`.
        arguments: values of its further parameters, as `with:` in a grid file.
        score: what verdicts compare.
        last_step: number of the last step, if it is known; `steps:` in a grid file.
        width, factors: what strategies map lr and wd by, see `Size`; without a width there is one strategy.
        code: digest of the function's module, and of the files that `code:` names.
        files: these files, relative to `folder`.
        folder: where the module is imported from, in front of all installed ones.
    """

    trainable: Literal["function"] = "function"
    function: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    score: ScoreSpec
    last_step: Positive | None = None
    width: Annotated[Positive | None, NotInId()] = None
    factors: Annotated[Literal["adamw", "sgd"], NotInId()] = "adamw"
    code: str = ""
    files: Annotated[tuple[str, ...], Field(strict=False), NotInId()] = ()
    folder: Annotated[str, NotInId()] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        module, colon, name = self.function.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise ValueError(f"function: MODULE:NAME is expected, such as mypackage.train:main, got {self.function!r}")
        try:
            canonical(self.arguments)
        except (TypeError, ValueError):
            raise ValueError("with: texts, numbers, lists and mappings are expected") from None
        return self

    @classmethod
    def from_block(
        cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path
    ) -> "FunctionRecipe":
        source, data = override_block(block, overrides, location)
        stated = validate(FunctionBlock, data, source)
        with locating(source):
            recipe = validate(cls, stated.fields() | {"folder": str(folder.resolve())}, source)
            recipe.check_signature()
        return recipe

    @property
    def recipe_key(self) -> tuple[object, ...]:
        """Hashable key of the recipe."""
        return self.function, canonical(self.arguments), self.score, self.last_step, self.code

    @property
    def metric(self) -> Metric:
        return self.score.metric

    @property
    def labels(self) -> Labels:
        return Labels(self.function)

    @property
    def steps(self) -> int | None:
        return self.last_step

    @property
    def data_kind(self) -> str:
        return "function"

    @property
    def needs_data(self) -> bool:
        return False

    @property
    def size(self) -> Size | None:
        return None if self.width is None else Size(self.width, self.factors)

    # --- its code ---

    @property
    def module_path(self) -> Path:
        """File of the function's module, found without importing it.

        Raises:
            DataMissingError: it is not there.
        """
        module = self.function.partition(":")[0]
        relative = Path(*module.split("."))
        for folder in (self.folder, *sys.path):
            for path in (Path(folder, relative).with_suffix(".py"), Path(folder, relative, "__init__.py")):
                if path.is_file():
                    return path
        raise DataMissingError(f"function: there is no module {module} in {self.folder}, nor among installed ones")

    def check_signature(self) -> None:
        """Check that the module has the function, and that it takes the arguments, without importing it.

        Raises:
            InputError: it has not, or does not.
            DataMissingError: there is no such module.
        """
        path, name = self.module_path, self.function.partition(":")[2]
        try:
            tree = ast.parse(path.read_text(encoding="utf-8-sig"))
        except (SyntaxError, UnicodeDecodeError) as error:
            raise InputError(f"function: {path}: {error}") from None
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if name not in functions:
            if (names := _bound_names(tree)) is not None and name.partition(".")[0] not in names:
                raise InputError(f"function: {path}: {unknown_name('function', name, functions)}")
            return  # it is imported there, or made in another way: the call will tell
        spec = functions[name].args
        positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        known = {*positional[1:], *(argument.arg for argument in spec.kwonlyargs)}
        if not positional:
            raise InputError(
                f"run.function: {name} in {path} takes no parameter for the run; it needs one, `def {name}(run)`"
            )
        if (unknown := sorted(self.arguments.keys() - known)) and not spec.kwarg:
            listed = f"; it takes {', '.join(sorted(known))}" if known else "; it takes none"
            raise InputError.of(f"with.{key}: {name} in {path} has no such parameter{listed}" for key in unknown)
        with_default = set(positional[len(positional) - len(spec.defaults) :])
        with_default |= {a.arg for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        if missing := sorted(known - with_default - self.arguments.keys()):
            raise InputError.of(f"with.{key}: {name} in {path} needs a value for it" for key in missing)

    def code_digest(self) -> str:
        """Return a digest of the code; comments, docstrings and formatting of Python do not change it.

        Raises:
            DataMissingError: a file is missing.
        """
        digest = hashlib.sha256()
        paths = [self.module_path]
        for pattern in self.files:
            matches = sorted(path for path in Path(self.folder).glob(pattern) if path.is_file())
            if not matches:
                raise DataMissingError(f"code: no file in {self.folder} matches {pattern}")
            paths += matches
        for path in dict.fromkeys(paths):
            digest.update(_normalised(path))
        return digest.hexdigest()[:DIGEST_DIGITS]

    def bound_to(self, data: str | None) -> Self:
        return self.model_copy(update={"code": self.code_digest()})

    def check_data(self, data: str | None, *, count: bool = False) -> None:
        self.check_signature()

    # --- training ---

    def train(self, run: RunContext) -> None:
        """Import the function and call it.

        Raises:
            InputError: its code is not that of the run.
        """
        if self.code and (found := self.code_digest()) != self.code:
            raise InputError(
                f"the code of {self.function} has changed since the run was requested (digest {self.code}, now "
                f"{found}); restore it, or request new runs with the same command"
            )
        if self.folder and self.folder not in sys.path[:1]:
            sys.path.insert(0, self.folder)
        if self.module_path.stat().st_uid not in (0, os.geteuid()):
            raise InputError(f"{self.module_path} belongs to another user, whose code is not executed")
        module, _, name = self.function.partition(":")
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        inspect.signature(target).bind(run, **self.arguments)  # a TypeError that names what is wrong
        target(run, **self.arguments)


def _bound_names(tree: ast.Module) -> set[str] | None:
    """Return the names that a module binds; None if it imports all names of another one."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "*" in names else names


def _normalised(path: Path) -> bytes:
    """Return the content of a file; of Python, its syntax tree without docstrings."""
    data = path.read_bytes()
    if path.suffix != ".py":
        return data
    try:
        tree = ast.parse(data)
    except SyntaxError:
        return data
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body[0] = ast.Pass()
    return ast.dump(tree).encode()
