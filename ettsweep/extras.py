"""Packages of extras, and the message if one is missing."""

from importlib.util import find_spec

from ettsweep.errors import PackageMissingError

TRAIN, FIGURES = "pip install 'ettsweep[train]'", "pip install 'ettsweep[figures]'"

INSTALL = {
    **dict.fromkeys(("torch", "torchvision", "timm", "sklearn", "tokenizers", "datasets"), TRAIN),
    **dict.fromkeys(("vl_convert", "pyarrow"), FIGURES),
    **{name: f"pip install {name}" for name in ("cmaes", "tensorboard", "wandb")},
}
"""Command that installs a missing module."""


def is_installed(module: str) -> bool:
    """Whether a module of an extra can be imported; it is not imported."""
    return find_spec(module) is not None


def missing_text(subject: str, *modules: str) -> str:
    """Return a sentence on the first missing module, with the command to type; "" if all are installed."""
    missing = next((module for module in modules if not is_installed(module)), None)
    return f"{subject} needs {missing}, which is not installed: {INSTALL[missing]}" if missing else ""


def check_installed(subject: str, *modules: str) -> None:
    """Check that modules of an extra are installed.

    Raises:
        PackageMissingError: one is missing; the message names `subject`, which needs it.
    """
    if text := missing_text(subject, *modules):
        raise PackageMissingError(text)
