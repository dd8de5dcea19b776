"""The limits of supervision, and the options that state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .typed_json import Fields, read_typed


@dataclass(frozen=True, slots=True)
class Supervision:
    """The limits, with their defaults; times in seconds.

    ``crash_budget`` failures of one group of processes within ``window_s`` are answered with a
    restart; one more is not. ``backoff_s`` is the rest before the first restart, which doubles up
    to ``backoff_most_s``. A group that served for ``stable_s`` starts from the beginning.
    ``hang_s``: without an answer, or without a new token while requests run or one is asked for.
    ``slow_s``: how long times per token are above the recipe's band. ``drain_s``: how long running
    requests may take once no new ones are wanted. ``poll_s``: between two looks.
    """

    crash_budget: int = 5
    window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0
    stable_s: float = 300.0
    hang_s: float = 60.0
    slow_s: float = 300.0
    drain_s: float = 30.0
    poll_s: float = 1.0

    def with_options(self, options: Mapping[str, float | int | None]) -> Supervision:
        """These limits with those that a command line states."""
        limits = {name: value for name, value in options.items() if value is not None}
        return replace(self, **limits)  # type: ignore[arg-type]


USUAL = Supervision()
# What each limit means, by its field; the option is called by it, without its unit.
OPTIONS = {
    "crash_budget": "failures of a server within the window that are answered with a restart",
    "window_s": "seconds in which failures count",
    "backoff_s": "seconds before the first restart; doubles with each that follows",
    "backoff_most_s": "the most seconds before a restart",
    "stable_s": "seconds of service after which earlier failures are forgotten",
    "hang_s": "seconds without an answer, or without tokens while requests run",
    "slow_s": "seconds above the recipe's time per token that count as a slow death",
    "drain_s": "seconds that running requests may take to finish",
    "poll_s": "seconds between two looks",
}


def option_of(field: str) -> str:
    """The option of a limit: ``--backoff-most`` for ``backoff_most_s``."""
    return "--" + field.removesuffix("_s").replace("_", "-")


def read_supervision(fields: Fields) -> Supervision:
    """The optional object ``supervision`` of a ``launch.json``."""
    if fields.data.get("supervision") is None:
        return USUAL
    return read_typed(Supervision, fields.child("supervision"))
