"""The reference of the command line in ``docs/reference/cli.md``, from its parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from recipe_core.doors.cli import load_commands
from scripts.documents import REFERENCE, exchange

PAGE = REFERENCE / "cli.md"
JSON = ("`--json`", "Print JSON.")
"""What nearly all commands take; their sections do not repeat it."""


def renewed(text: str) -> str:
    """The page with its commands written anew."""
    return exchange(text, "commands", commands_reference())


def commands_reference() -> str:
    """A section a command: what it does, and its arguments and options.

    Options that several commands share stand in one table; their sections name them.
    """
    group: Any = typer.main.get_command(load_commands())
    commands = group.commands
    described: dict[tuple[str, str], list[str]] = {}
    for name, command in commands.items():
        for parameter in command.params:
            described.setdefault((_title(parameter), parameter.help or ""), []).append(name)
    shared = {key for key, names in described.items() if len(names) > 2}
    parts = ["## Shared words\n\n" + _table(row for row in described if row in shared)]
    for name, command in commands.items():
        rows = [(_title(parameter), parameter.help or "") for parameter in command.params]
        common = ", ".join(title for title, text in rows if (title, text) in shared - {JSON})
        own_options = _table(row for row in rows if row not in shared)
        about = " ".join((command.help or "").split())
        lines = [f"## `recipe {name}`", about, common and f"Shared: {common}.", own_options]
        parts.append("\n\n".join(filter(None, lines)))
    return "\n\n".join(parts)


def _title(parameter: Any) -> str:
    """An argument as its metavar; an option with its short form and what it takes."""
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    takes = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return f"`{', '.join(reversed(parameter.opts))}{takes}`"


def _table(rows: Iterator[tuple[str, str]]) -> str:
    cells = [f"| {title} | {text.replace('|', chr(92) + '|')} |" for title, text in rows]
    return "\n".join(["| | |", "|---|---|", *cells]) if cells else ""
