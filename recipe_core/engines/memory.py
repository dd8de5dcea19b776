"""An engine's share of a device: shared caches, captured graphs, padded weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataRow
from recipe_core.base.provenance import Quantity, Status
from recipe_core.engines.release import Cited, Rules
from recipe_core.hardware.profile import Runtime

Through = Literal["native", "lmcache", "hicache"]
Tier = Literal["host", "disk", "remote"]
Share = Annotated[float, Field(ge=0, le=1)]


class KvWay(Cited):
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


Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class WholeBlocks(Cited):
    """Models whose tensors of ``roles`` get whole scale blocks on every rank, zeros in the last.

    Other block-quantised shares that are no whole blocks are refused. ``model_types``: of their
    ``config.json``.
    """

    model_types: tuple[str, ...]
    roles: tuple[str, ...]
    runtimes: tuple[Runtime, ...]


class CacheGroups(Cited):
    """One pool of equal blocks for all layers, where layers cache in different ways.

    Layers of one kind form groups of equally many layers; a block holds a page of each layer of a
    group. Pages are as large as the largest: layers with smaller ones hold more tokens in each, and
    a page of an attention layer holds so many tokens (a multiple of ``page_tokens``, of
    ``latent_page_tokens`` for latents) that a state fits into it. ``state_blocks``: that a request
    holds of every group of states. ``since``: the release from which this holds; before, layouts
    changed several times. ``overlaps_steps``: whether what slides out of a window stays
    until all steps in progress (one more than there are pipeline stages) are done, or one.
    """

    page_tokens: Whole
    latent_page_tokens: Whole
    state_blocks: Whole
    since: str | None = None
    overlaps_steps: bool = True


class CompressedPools(Cited):
    """Pools of compressed caches, a kind each, where layers do not share blocks.

    ``page_tokens``: of a page. A window is freed in steps of ``freed_after_tokens``;
    ``kept_windows`` more of each request are kept for prefixes, and ``steps`` steps are written at
    once. ``window_share``: tokens of the window's pool over those of the cache, where the server is
    not told how many requests run. ``release`` and ``runtimes``: where this holds.
    """

    page_tokens: Whole
    freed_after_tokens: Whole
    kept_windows: Whole
    steps: Whole
    window_share: Annotated[float, Field(gt=0, le=1)]
    release: str
    runtimes: tuple[Runtime, ...]


class GraphMemory(Cited):
    """Captured graphs, which an engine measures before it sizes the cache.

    ``bytes``: what it sets aside for them in its share, with graphs for batches of up to
    ``largest_batch`` (by architecture, "any" for the others); less in proportion where fewer
    requests are allowed, as graphs are captured for batches of up to twice as many. While it
    measures, a cache of one block for every request of the largest batch must fit into the device.
    """

    runtimes: tuple[Runtime, ...]
    bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    largest_batch: dict[str, Whole]

    def batch_on(self, architecture: str) -> int:
        return self.largest_batch.get(architecture, self.largest_batch["any"])


class RowPadding(Cited):
    """Bytes that the engine appends to every row of some fp8 matrices.

    Those whose rows are a multiple of ``multiple_bytes`` long.

    Only on ``runtimes``, for checkpoints in one of ``schemes`` (writer and what a scale covers,
    "fp8/tensor"), and never for experts.
    """

    runtimes: tuple[Runtime, ...]
    schemes: tuple[str, ...]
    multiple_bytes: Whole
    added_bytes: Whole


class ExpertTiles(Cited):
    """Multiples to which an expert kernel rounds up the widths of experts in ``dtype``.

    For devices of ``runtimes`` and ``architectures`` (empty: all). ``intermediate`` is rounded for
    each rank's share.
    """

    dtype: str
    runtimes: tuple[Runtime, ...]
    architectures: tuple[str, ...] = ()
    hidden: Whole
    intermediate: Whole


class StatedSize(DataRow):
    """A stated size of the cache in place of a share: a variable in GiB, an option in bytes."""

    variable_gib: str
    option_bytes: str


class StartClaim(DataRow):
    """An engine that starts only where ``fraction`` of the whole memory is free.

    ``stated``: by runtime, what replaces the share where it is set. ``programs_bytes``: by runtime,
    what its own processes hold of the same memory before it looks.
    """

    stated: Mapping[Runtime, StatedSize] = {}
    programs_bytes: Mapping[Runtime, Quantity] = {}
    source: str
    status: Status
    note: str = ""


class EncoderUse(Cited):
    """The engine's treatment of the towers of multimodal models.

    ``sharded``: whether their layers are cut over tensor-parallel ranks; ``every_stage``: whether
    all pipeline stages hold them, not only the first. ``profiled``: whether the largest items are
    encoded before the cache is made, which gets what is left. ``reserved_bytes``: what the default
    share leaves for encoding besides what it leaves otherwise.
    """

    sharded: bool
    every_stage: bool = False
    profiled: bool = False
    reserved_bytes: NonNegative = 0


class MemoryUse(DataRow):
    """The engine's division of a device, and when it refuses to start.

    ``fraction`` of what a process can allocate (M), with weights W, workspace A and runtime N,
    leaves for the cache:

    * ``of-device``: M · fraction - W - A - N (vLLM's gpu_memory_utilization)
    * ``static``: M · fraction - W, while A and N live in the rest (SGLang's mem_fraction_static)
    * ``of-free``: (M - W - A - N) · fraction (TensorRT-LLM's free_gpu_memory_fraction)

    ``needs_longest``: it refuses to start unless a request of the longest context fits into the
    cache. ``reserves``: whether a request is admitted only if its whole length fits (TensorRT-LLM's
    guaranteed_no_evict), or if its tokens so far do; ``whole_contexts``: whether each request that
    runs has room for the longest from the start (llama.cpp's slots). ``caches``: whether there is
    a cache at all (an engine that only embeds keeps none). ``truncates``: whether it cuts a prompt
    that does not fit into a step, where others refuse to start. ``claim``: what must be free when
    it starts, where that is a share of the whole memory rather than what it uses. ``row_padding``,
    ``expert_tiles`` and ``whole_blocks``: where weights take more than the checkpoint's bytes; the
    first tiles for a device count. ``groups``: how caches of several kinds share a pool (None: each
    by itself), ``compressed_pools``: how those of compressed attention lie apart.
    ``sampler_bytes_per_logit``: of the largest buffers while a step samples;
    ``sampler_state_bytes_per_logit``: of what the sampler keeps for each sequence it may hold, as
    counts of its tokens. ``kept_scores``: copies of an encoder's attention scores that it stores
    while a layer runs (0: its kernels store none). ``graphs``: None where captured graphs are in no
    share. ``encoder``: None where towers of multimodal models are whole on the first stage of every
    rank.
    """

    fraction: Quantity
    pool: Literal["of-device", "static", "of-free"]
    needs_longest: bool
    reserves: bool = False
    whole_contexts: bool = False
    caches: bool = True
    truncates: bool = False
    context_single_bytes: Quantity
    context_parallel_bytes: Quantity
    sampler_bytes_per_logit: Quantity
    sampler_state_bytes_per_logit: Quantity | None = None
    kept_scores: Annotated[int, Field(ge=0, le=4)] = 0
    block_tokens: Whole
    claim: StartClaim | None = None
    row_padding: RowPadding | None = None
    expert_tiles: tuple[ExpertTiles, ...] = ()
    whole_blocks: tuple[WholeBlocks, ...] = ()
    groups: CacheGroups | None = None
    compressed_pools: CompressedPools | None = None
    graphs: GraphMemory | None = None
    encoder: EncoderUse | None = None

    def rounds_blocks(self, model_type: str, role: str, runtime: Runtime) -> bool:
        return any(
            model_type in rule.model_types and role in rule.roles and runtime in rule.runtimes
            for rule in self.whole_blocks
        )

    def with_values(self, **values: float) -> MemoryUse:
        return self.model_copy(
            update={
                name: getattr(self, name).model_copy(update={"value": value})
                for name, value in values.items()
                if getattr(self, name) is not None
            }
        )

    def tiles(self, dtype: str, runtime: Runtime, architecture: str) -> ExpertTiles | None:
        """Return how experts in ``dtype`` are rounded up on a device; None where they are not."""
        for tiles in self.expert_tiles:
            if tiles.dtype != dtype or runtime not in tiles.runtimes:
                continue
            if not tiles.architectures or architecture in tiles.architectures:
                return tiles
        return None


def rules_then(memory: MemoryUse, changes: Iterable[Rules]) -> dict[str, Any]:
    """Return what of ``memory`` releases with other rules have instead, by field."""
    then: dict[str, Any] = {}
    for change in changes:
        if change.overlaps_steps is not None and memory.groups is not None:
            update = {"overlaps_steps": change.overlaps_steps}
            then["groups"] = memory.groups.model_copy(update=update)
    for change in changes:
        then |= {name: () if name == "whole_blocks" else None for name in change.without}
    return then


def captured_batch(requests: Float) -> Float:
    """Round up to a batch that vLLM captures: see ``captured_sizes``."""
    small = 2 ** np.ceil(np.log2(np.clip(requests, 1, 4)))
    step = np.where(requests > 256, 16, 8)
    larger: Float = np.ceil(requests / step) * step
    return np.where(requests > 4, larger, small)


def captured_sizes(largest: Float) -> Float:
    """Count the batches vLLM captures: 1, 2, 4, then every 8th to 256, every 16th beyond.

    Source: ``_set_cudagraph_sizes`` in ``config/vllm.py`` of vLLM 0.32.0.
    """
    small = np.minimum(1 + np.floor(np.log2(np.clip(largest, 1, 4))), 3)
    eighths = np.floor(np.minimum(largest, 255) / 8)
    sixteenths = np.maximum(np.floor((largest - 256) / 16) + 1, 0)
    sizes: Float = small + eighths + sixteenths
    return sizes
