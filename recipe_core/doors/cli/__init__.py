"""The command line: parse, call, print. Exit codes: 0 ok, 1 the answer is "no", 2 bad input.

One module per family of commands, imported when one of them is run. A command imports what it needs
when it runs, so that ``recipe --help`` is quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from recipe_core.doors.cli import program

# Every command and its module, in the order of ``recipe --help``.
COMMANDS = {
    "models": "catalog",
    "hardware": "catalog",
    "engines": "catalog",
    "profile": "measuring",
    "offers": "catalog",
    "plan": "planning",
    "size": "planning",
    "fleet": "fleets",
    "estimate": "planning",
    "compress": "planning",
    "simulate": "over_time",
    "cold-start": "over_time",
    "check": "checking",
    "validate": "checking",
    "build": "recipes",
    "lock": "recipes",
    "resolve": "recipes",
    "diff": "recipes",
    "convert": "recipes",
    "keygen": "recipes",
    "preflight": "launching",
    "up": "launching",
    "bench": "launching",
    "status": "launching",
    "restart": "launching",
    "down": "launching",
    "logs": "launching",
    "doctor": "launching",
    "serve": "launching",
    "mcp": "launching",
    "import": "measuring",
    "reconcile": "measuring",
    "calibrate": "measuring",
    "trace": "over_time",
    "verify": "trials",
    "tune": "trials",
}


def load_commands(command: str = "") -> typer.Typer:
    """The program with a command and its family; with all commands where there is none of the name.

    Typer takes a tenth of a second to build all of them.
    """
    modules = [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        import_module(f"recipe_core.doors.cli.{module}")
    order = list(COMMANDS)
    program.app.registered_commands.sort(key=lambda command: order.index(str(command.name)))
    return program.app


def main() -> None:
    """Entry point of ``recipe``."""
    load_commands(*sys.argv[1:2])
    program.run_program()
