"""How much of the prompts caches of several sizes hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """Shares of prompt tokens found, by the size of the cache in tokens; both rise.

    ``affinity``: whether requests that share a prefix reach the same replica.
    """

    cache_tokens: tuple[float, ...]
    hit: tuple[float, ...]
    affinity: bool = False

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]], affinity: bool = False) -> ReuseCurve:
        """The curve through points (tokens, share), in any order."""
        tokens, hits = zip(*sorted(points), strict=True)
        return cls(tuple(map(float, tokens)), tuple(map(float, hits)), affinity)

    def hit_at(self, tokens: Float) -> Float:
        """Share of prompt tokens that a cache of so many tokens finds (one per case).

        Between two points by the logarithm of the size, as working sets are spread over orders of
        magnitude; below the first in proportion to the size; above the last as there.
        """
        sizes = np.asarray(self.cache_tokens)
        inside = np.interp(np.log(np.maximum(tokens, sizes[0])), np.log(sizes), self.hit)
        return np.asarray(inside * np.clip(tokens / sizes[0], 0.0, 1.0))
