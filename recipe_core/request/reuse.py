"""How much of the prompts a prefix cache holds, by its size."""

from __future__ import annotations

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
