"""How much of the prompts a prefix cache holds, by its size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, Field

from recipe_core.base.described import DESCRIBED
from recipe_core.base.types import Positive


class PrefixReuse(BaseModel):
    """A size of a cache, and the share of prompt tokens that it would have held."""

    model_config = DESCRIBED

    cache_tokens: Positive
    """Size of the cache, in tokens of all requests together."""

    hit: Annotated[float, Field(ge=0, lt=1)]
    """Share of prompt tokens found in it, 0 to below 1."""


def check_curve(points: Sequence[PrefixReuse]) -> None:
    """Hold points to what caches do: a larger one finds at least as much.

    Raises:
        ValueError: naming two points of which the larger cache finds less, or that are one size.
    """
    ordered = sorted(points, key=lambda point: (point.cache_tokens, point.hit))
    for less, more in pairwise(ordered):
        if more.cache_tokens == less.cache_tokens:
            raise ValueError(f"prefix_reuse names a cache of {more.cache_tokens:g} tokens twice")
        if more.hit < less.hit:
            raise ValueError(
                f"prefix_reuse falls from {less.hit:g} in {less.cache_tokens:g} tokens to "
                f"{more.hit:g} in {more.cache_tokens:g}; a larger cache finds at least as much"
            )
