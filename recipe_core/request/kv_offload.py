"""Where the KV cache of past prompts goes when the devices have no room for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from recipe_core.base.documented import DESCRIBED
from recipe_core.base.texts import Name
from recipe_core.base.types import Positive, Text
from recipe_core.engines.kv_offload import Through


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


Gib = Annotated[float, Field(gt=0, le=1 << 30, allow_inf_nan=False)]


class KvStore(BaseModel):
    """A store of KV blocks behind the host's memory."""

    model_config = DESCRIBED

    tier: Text
    """Kind of storage, by the name of its tier (``hw_profiles/storage/``): its rates and latency
    are those of the store."""

    gib: Gib
    """Room for KV blocks, in GiB: of a server on a ``disk``, of all servers on a ``remote``."""

    path: Name | None = None
    """Folder of the store on the nodes; left out, ``/var/tmp/kv-cache``."""

    url: Name | None = None
    """Address of a ``remote`` store, as LMCache takes it (``redis://host:6379``); instead of
    ``path``."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is not None and self.url is not None:
            raise ValueError("takes path or url, not both")
        return self


class KvOffload(BaseModel):
    """Tiers below the cache of the devices: what is evicted there is found again here."""

    model_config = DESCRIBED

    through: Through | None = None
    """What moves the blocks: the engine itself (``native``), ``lmcache`` or SGLang's ``hicache``;
    left out, the first that the engine has."""

    host_gib: Gib | None = None
    """Host memory of one server (a replica), in GiB. Instead of ``host_gib_per_device``."""

    host_gib_per_device: Gib | None = None
    """Host memory of each device that a server uses, in GiB."""

    disk: KvStore | None = None
    """Drives of the node behind the host's memory; left out, none."""

    remote: KvStore | None = None
    """A store over the network that all servers share; left out, none."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.host_gib is None) == (self.host_gib_per_device is None):
            raise ValueError("needs either host_gib or host_gib_per_device")
        if self.disk is not None and self.disk.url is not None:
            raise ValueError("disk is a folder of the node and takes path, not url")
        return self
