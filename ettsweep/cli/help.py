"""The help of commands: commands and options in sections, values with telling names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "Start": ("init", "try", "grid", "search", "train"),
    "Look": ("status", "watch", "show", "logs", "report", "sweeps"),
    "Answer": ("verify-optimum", "seeds", "verdict", "compare"),
    "Tidy": ("cancel", "retry", "clean"),
    "Theory and tools": ("map", "scales", "check-scaling", "read", "data", "doctor"),
}
"""Commands by section, in the order of `--help`."""

OPTIONS = {
    "How sure": ("rule", "confidence", "margin"),
    "Where": ("launch", "launch_set", "log", "trust_group", "data", "results"),
    "How long": ("max_runs", "max_seeds", "max_hours", "follow", "dry_run"),
    "Output": ("form", "version", "install_completion", "show_completion", "help"),
}
"""Parameters by section; all others select the input, and come first."""

TYPE = re.compile(r"<(?:list\[)?(?:str|int|float|Path)(?: range)?\]?>")
"""Typer's names of values without a name of their own."""

FEWEST = 9
"""A command with at least so many options has them in sections."""


class Command(TyperCommand):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments, then of options by section."""
        records: dict[str, list[tuple[str, str]]] = {}
        options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                name, is_option = str(parameter.name), parameter.param_type_name == "option"
                # A type such as <list[str]> says nothing.
                shown = TYPE.sub(name.strip("_").upper().replace("_", "-") if is_option else "", record[0]).strip()
                records.setdefault(_section(name) if is_option else "Arguments", []).append((shown, record[1]))
        if len(options) < FEWEST:
            arguments = records.pop("Arguments", [])
            records = {"Arguments": arguments, "Options": [record for each in records.values() for record in each]}
        for title in ("Arguments", "Options", *OPTIONS):
            if records.get(title):
                with formatter.section(title):
                    formatter.write_dl(records[title])


def _section(name: str) -> str:
    return next((title for title, names in OPTIONS.items() if name in names), "Options")


class Group(TyperGroup):
    """The commands, whose help has them in sections."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        known = super().list_commands(ctx)
        ordered = [name for names in COMMANDS.values() for name in names if name in known]
        return [*ordered, *(name for name in known if name not in ordered)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence of each command's help, by section."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        limit = formatter.width - 6 - max(map(len, commands))
        for title, names in COMMANDS.items():
            if rows := list(_rows(commands, names, limit)):
                with formatter.section(title):
                    formatter.write_dl(rows)


def _rows(commands: Mapping[str, Any], names: Sequence[str], limit: int) -> Iterator[tuple[str, str]]:
    for name in names:
        if command := commands.get(name):
            yield name, command.get_short_help_str(limit)
