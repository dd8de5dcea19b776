"""How an engine moves blocks of its KV cache to and from memory that is not the devices'."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataRow
from recipe_core.base.provenance import Status
from recipe_core.hardware.profile import Runtime

Through = Literal["native", "lmcache", "hicache"]
Tier = Literal["host", "disk", "remote"]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class KvWay(DataRow):
    """One way to offload: an engine's own, or a library that it is started with.

    ``tiers``: what it can put behind the devices, nearest first; ``stores``: of these behind the
    host's memory, how many at once. ``loads``: how a hit comes back. "asynchronous": the request
    waits for its blocks while others compute; "blocking": the step waits, and with it everybody;
    "layerwise": layers are copied while those before them compute. ``saves``: blocks of prompts
    alone, or of answers too. ``block_tokens``: of a piece that is read or written at once;
    ``reads_at_once``: pieces read from a store together. ``page_tokens``: of a block of the
    devices' cache that it needs, where that is not the engine's default.

    ``link_share``: of the link's rate that copies reach. ``exposed``: share of the time of saving
    that the devices' steps wait for; ``block_s``: what each piece that is saved adds to them
    besides. ``step_s`` and ``request_s``: what it adds to every step, and
    to every request before it is scheduled.

    ``lacks``: kinds of layers that it cannot save: states of linear attention, windows, latents,
    compressed pasts. ``once``: whether ranks that hold the same latent save one copy of it.
    """

    tiers: tuple[Tier, ...]
    stores: Annotated[int, Field(ge=0, le=2)] = 0
    loads: Literal["asynchronous", "blocking", "layerwise"]
    saves: Literal["prompts", "all"]
    block_tokens: Annotated[int, Field(ge=1)]
    reads_at_once: Annotated[int, Field(ge=1)] = 1
    page_tokens: Annotated[int, Field(ge=1)] | None = None
    link_share: Annotated[float, Field(gt=0, le=1)]
    exposed: Share
    block_s: NonNegative = 0.0
    step_s: NonNegative = 0.0
    request_s: NonNegative = 0.0
    lacks: tuple[Literal["states", "windows", "latents", "compressed"], ...] = ()
    once: bool = False
    runtimes: tuple[Runtime, ...]
    package: str | None = None
    source: str
    status: Status
    note: str | None = None
