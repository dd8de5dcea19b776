"""Why a case cannot run, as data rather than as an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipe_core.base.arrays import Bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule over many cases.

    ``broken`` has one entry per case; ``say(i)`` is the sentence for case ``i``, with its numbers.
    """

    code: str
    broken: Bool
    say: Callable[[int], str]
