"""Any Python function as the run: `run: {function: package.module:name}` in a grid file."""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.kinds.own_code import (
    InFile,
    OwnCodeRecipe,
    block_schema,
    common_info,
    folders_of,
    read_stated,
    summary,
    with_code,
)
from ettsweep.project_code import ProjectCode, find_code, import_folders
from ettsweep.runs.spec import USUAL_AXES, Block, Kind, Labels, RecipeInfo
from ettsweep.schema import NotInId, canonical, locating


class FunctionRecipe(OwnCodeRecipe):
    """A function, to call with a `Run` (`ettsweep/run.py`) and the fields under `with:`.

    Attributes:
        function: module and name, such as `mypackage.train:main`.
        arguments: values of its further parameters.
        trial: arguments that shorten a run of `ettsweep try`.
        folder: of the module, before all installed ones.
    """

    trainable: Literal["function"] = "function"
    function: str
    arguments: Annotated[dict[str, Any], InFile("with")] = Field(default_factory=dict)
    trial: Annotated[dict[str, Any], NotInId(), InFile("try")] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        module, colon, name = self.function.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise ValueError(f"function: MODULE:NAME such as mypackage.train:main is expected, got {self.function!r}")
        try:
            canonical(self.arguments)
        except (TypeError, ValueError):
            raise ValueError("with: must be texts, numbers, lists and mappings") from None
        return self

    # --- its code ---

    @property
    def module_path(self) -> Path:
        """File of the function's module, found without importing it.

        Raises:
            DataMissingError: it is missing.
        """
        module = self.function.partition(":")[0]
        relative = Path(*module.split("."))
        for folder in (self.folder, *map(str, import_folders(Path(self.folder))), *sys.path):
            for path in (Path(folder, relative).with_suffix(".py"), Path(folder, relative, "__init__.py")):
                if path.is_file():
                    return path
        raise DataMissingError(f"function: there is no module {module} in {self.folder} or among installed ones")

    def check_signature(self) -> None:
        """Check, without an import, that the module has the function, and that it takes the arguments.

        Raises:
            InputError: the module or the function is missing, or does not take the arguments.
        """
        name = self.function.partition(":")[2]
        try:
            path = self.module_path
        except DataMissingError as error:
            raise InputError(str(error)) from None
        try:
            tree = ast.parse(path.read_text(encoding="utf-8-sig"))
        except SyntaxError as error:
            raise InputError(f"function: {path}, line {error.lineno}: {error.msg}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"function: {path}: {error}") from None
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if name not in functions:
            if (names := _bound_names(tree)) is not None and name.partition(".")[0] not in names:
                raise InputError(f"function: {path}: {unknown_name('function', name, functions)}")
            return  # imported or made there: the call will show
        spec = functions[name].args
        positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        known = {*positional[1:], *(argument.arg for argument in spec.kwonlyargs)}
        if not positional:
            raise InputError(
                f"run.function: {name} in {path} takes no parameter for the run; it needs one, `def {name}(run)`"
            )
        if (wrong := sorted(self.trial.keys() - known)) and not spec.kwarg:
            raise InputError.of(f"try.{key}: {name} in {path} has no such parameter" for key in wrong)
        if (unknown := sorted(self.arguments.keys() - known)) and not spec.kwarg:
            listed = f"; it takes {', '.join(sorted(known))}" if known else "; it takes none"
            raise InputError.of(f"with.{key}: {name} in {path} has no such parameter{listed}" for key in unknown)
        with_default = set(positional[len(positional) - len(spec.defaults) :])
        with_default |= {a.arg for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        if missing := sorted(known - with_default - self.arguments.keys()):
            raise InputError.of(f"with.{key}: {name} in {path} needs a value for it" for key in missing)


def _bound_names(tree: ast.Module) -> set[str] | None:
    """Return the names of a module; None if it imports all names of another one."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "*" in names else names


# --- as planner and views know it -------------------------------------------------------------------------------------


def _info(recipe: FunctionRecipe) -> RecipeInfo:
    axes = USUAL_AXES if recipe.usual_axes is None else recipe.usual_axes
    return RecipeInfo(labels=Labels(recipe.function), axes=axes, data_kind="function", nodes=1, **common_info(recipe))


def _read(block: Block, overrides: Sequence[str], location: str, folder: Path) -> FunctionRecipe:
    own = [_under_with(block, override) for override in overrides]
    recipe, source = read_stated(FunctionRecipe, block, own, location, folder)
    with locating(source):
        recipe.check_signature()
    return recipe


def _under_with(block: dict[str, Any], override: str) -> str:
    """Return `key=value` with the prefix `with.` if it is for a parameter of the function.

    Raises:
        InputError: both `run:` and `with:` have the key.
    """
    key, parameters = override.partition("=")[0].partition(".")[0], block.get("with")
    if key not in {field.alias for field in block_schema(FunctionRecipe).model_fields.values()}:
        return f"with.{override}"
    if isinstance(parameters, dict) and key in parameters:
        raise InputError(
            f"--set {override}: `run:` and `with:` both have {key}; for the function's, pass --set with.{override}"
        )
    return override


def _bind(recipe: FunctionRecipe, data: str | None) -> FunctionRecipe:
    if recipe.code:  # of a sweep: it keeps its code
        return recipe
    digest = _project_code(recipe).digest
    return recipe.model_copy(update={"code": digest, "trains_in": digest})


def _project_code(recipe: FunctionRecipe) -> ProjectCode:
    folder, rule = Path(recipe.folder), recipe.code_rule
    return find_code(folder, rule, named=[recipe.module_path], folders=folders_of(folder, (*rule.add, *rule.only)))


def _for_trial(recipe: FunctionRecipe) -> FunctionRecipe:
    ends_early = recipe.ends_early or bool(recipe.trial)  # `steps` is of whole runs
    arguments = recipe.arguments | recipe.trial
    return recipe.model_copy(update={"arguments": arguments, "trial": {}, "ends_early": ends_early})


FUNCTION = Kind(
    schema=FunctionRecipe,
    info=_info,
    read=_read,
    check_data=lambda recipe, data, count: recipe.check_signature(),
    bind=_bind,
    for_trial=_for_trial,
    summary=summary,
    project_code=_project_code,
    with_code=with_code,
)
