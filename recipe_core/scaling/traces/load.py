"""A load: rates over the whole time that is looked at, and what its requests are like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float


@dataclass(frozen=True, slots=True)
class Lengths:
    """A joint distribution of prompt and answer lengths; one number a point, weights sum to 1."""

    input_tokens: Float
    output_tokens: Float
    weight: Float

    @property
    def mean_input(self) -> float:
        return float(np.dot(self.input_tokens, self.weight))

    @property
    def mean_output(self) -> float:
        return float(np.dot(self.output_tokens, self.weight))


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second in intervals of ``interval_s`` from second 0 on.

    burstiness: coefficient of variation of the gaps between requests within an interval.
    start_hour: hour of the week at second 0. source: for people.
    """

    rates: Float
    interval_s: float
    lengths: Lengths
    burstiness: float = 1.0
    start_hour: int = 0
    source: str = ""

    @property
    def span_s(self) -> float:
        """Seconds of the whole time."""
        return len(self.rates) * self.interval_s

    @property
    def requests(self) -> float:
        return float(self.rates.sum() * self.interval_s)
