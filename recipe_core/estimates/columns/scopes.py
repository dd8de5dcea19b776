"""Corrections that hold where a caller states none: what this machine, or a server, has learned.

Doors set them around a question (``correct_by_default``), problems take them up when they are
resolved. They are learned when they are first needed: a command that estimates nothing reads no
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from recipe_core.estimates.columns.corrections import Corrections

# Learns corrections, or says that there are none; called once for each block at most.
Source = Callable[[], Corrections | None]


_standing: ContextVar[Source | None] = ContextVar("standing", default=None)


def standing_corrections() -> Corrections | None:
    """The corrections of the block that runs; None outside, and where nothing was learned.

    Raises:
        RecipeError: where the runs cannot be read.
    """
    learn = _standing.get()
    return None if learn is None else learn()


@contextmanager
def correct_by_default(source: Source) -> Iterator[None]:
    """Correct estimates in this block that state no corrections of their own."""

    @cache
    def learn() -> Corrections | None:
        with without_corrections():  # runs are held against the formulas' own estimates
            return source()

    token = _standing.set(learn)
    try:
        yield
    finally:
        _standing.reset(token)


def has_standing() -> bool:
    """Return whether a block says what holds by default, be it nothing."""
    return _standing.get() is not None


def _no_standing() -> None:
    return None


@contextmanager
def without_corrections() -> Iterator[None]:
    """Estimate by the formulas alone in this block, as where nothing was learned."""
    with correct_by_default(_no_standing):
        yield
