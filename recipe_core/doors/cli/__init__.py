"""The command line: parse, call, print. Exit codes: 0 ok, 1 the answer is "no", 2 bad input.

One module per family of commands; they share ``app``. A command imports what it needs when it
runs, so that ``recipe --help`` is quick.
"""

# The order of `recipe --help`.
# isort: off
from recipe_core.doors.cli import (
    catalog,
    profiling,
    offers,
    planning,
    compressing,
    over_time,
    starting,
    checking,
    recipes,
    launching,
    measuring,
    calibrating,
    traffic,
    trials,
)

# isort: on
from recipe_core.doors.cli.app import app, main

__all__ = [
    "app",
    "calibrating",
    "catalog",
    "checking",
    "compressing",
    "launching",
    "main",
    "measuring",
    "offers",
    "over_time",
    "planning",
    "profiling",
    "recipes",
    "starting",
    "traffic",
    "trials",
]
