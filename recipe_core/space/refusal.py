"""Why a candidate is refused, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipe_core.base.arrays import Bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule over many cases: where it is ``broken``, and the sentence (with this case's numbers) that says so."""

    code: str
    broken: Bool
    say: Callable[[int], str]
