"""The command read: list readers, and show the metrics that they find."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli.options import Form
from ettsweep.cli.parsers import parse_path
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import FailedError, InputError


def read(
    *,
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A run's folder or a log; leave it out to list all readers.",
            metavar="[FOLDER_OR_LOG]",
            parser=parse_path,
            show_default=False,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Reader: a name from the list of `ettsweep read`, a pattern with named groups, or a YAML file; by "
            "default all readers.",
            metavar="NAME_OR_PATTERN",
        ),
    ] = None,
    form: Form = Format.TABLE,
) -> None:
    """Show which metrics a reader finds in a log or folder.

    Nothing is trained. The exit code is 1 if it finds none, or cannot tell training from validation.
    """
    if path is None and reader is not None:
        raise InputError(f"--reader {reader}: add the folder or log to read")
    if path is None:
        from ettsweep.readers.looking import reader_rows

        print_table(reader_rows(), form, ["name", "about"] if form is Format.TABLE else None)
    elif reader is None:
        _show_all(path, form)
    else:
        _show(path, reader, form)


def _show(path: Path, reader: str, form: Format) -> None:
    from ettsweep.readers.looking import look, summary
    from ettsweep.readers.registry import reader_of

    seen = look(reader_of(reader, source="--reader"), path)
    if not seen.rows:
        raise FailedError(f"{path}: {seen.problem or seen.seen}")
    print_table(summary(seen.metrics), form)
    print_note("\n".join([f"read: {', '.join(seen.files)}", *seen.notes]))
    if problems := list(filter(None, [seen.problem, *seen.conflicts.values()])):
        raise FailedError("\n".join(problems))


def _show_all(path: Path, form: Format) -> None:
    from ettsweep.readers.looking import looks, overview
    from ettsweep.readers.source import listed

    found = looks(path)
    if not any(each.rows for each in found):
        problems = "; ".join(each.problem for each in found)
        raise FailedError(
            f"{path}: no reader finds a metric{f': {problems}' if problems else ''}; --reader NAME shows why not, "
            r"--reader 'step (?P<step>\d+).*val loss (?P<val_loss>\S+)' reads lines of your own"
        )
    rows = overview(found)
    texts = [row | {key: listed(row[key], 6) for key in ("files", "metrics")} for row in rows]
    print_table(texts, form, data=rows)
    name = next(each.reader.name for each in found if each.rows)
    print_note(f"`ettsweep read {shlex.quote(str(path))} --reader {name}` shows the values that it finds")
