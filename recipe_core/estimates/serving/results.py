"""The answer of a serving estimate: SI units, in the names.

Memory is per device, of the fullest; throughput is of the whole deployment unless a name says
per_gpu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from recipe_core.estimates.prediction import (
    DOCUMENTED,
    Amount,
    Count,
    EstimateBase,
    IntervalsByFigure,
    Known,
    Part,
    Positive,
    Seconds,
    Share,
    all_figures,
    document_part,
)
from recipe_core.estimates.serving.accuracy import Accuracy
from recipe_core.estimates.serving.bottlenecks import CAUSES
from recipe_core.estimates.serving.feature_results import (
    CompressionEstimate,
    KvTier,
    PrefixCache,
    RentedReplicas,
)
from recipe_core.estimates.serving.simulate import FIGURES

_NAMES = "|".join(figure.removesuffix("_s") for figure in FIGURES)
PERCENTILE = rf"^({_NAMES})_p\d+(\.\d+)?_s$"
# Name of a percentile: ``ttft_p95_s``.
Percentile = Annotated[str, Field(pattern=PERCENTILE)]
_CAUSE = Literal[CAUSES]  # type: ignore[valid-type]
LargestPart = Literal["weights", "kv_needed", "activations", "runtime"]


@dataclass(frozen=True, slots=True)
class StageMemory(Part):
    """Memory of one device of a pipeline stage."""

    weights_bytes: Amount
    """Weights, in bytes, those of the vision and audio encoders included."""
    encoder_bytes: Amount
    """Weights of the vision and audio encoders, in bytes; 0 where none is loaded."""
    kv_needed_bytes: Amount
    """KV cache that the load needs, in bytes."""
    activations_bytes: Amount
    """Activations and other workspace of the largest step, in bytes."""
    runtime_bytes: Amount
    """Context of the runtime and communication buffers, in bytes."""
    total_bytes: Amount
    """Sum of weights, cache, activations and runtime, in bytes."""


@dataclass(frozen=True, slots=True)
class PoolMemory(StageMemory):
    """Memory of the fullest device, and what fits into it."""

    capacity_bytes: Positive
    """Memory of a device, in bytes."""
    usable_bytes: Positive
    """The engine's share of the device's memory, in bytes."""
    kv_cache_bytes: float
    """Memory left for the KV cache after everything else, in bytes; negative where weights and
    workspace alone are too large."""
    kv_cache_tokens: int
    """Tokens of context that a replica's KV cache holds."""
    max_concurrency: int
    """Requests of full length that all replicas hold at once."""
    max_context: Count
    """Longest single request that fits, in tokens."""
    max_context_at_load: Count
    """Longest length, in tokens, that all requests held at once can reach together."""
    largest_part: LargestPart
    """The part that takes most of the memory."""
    start_bytes: Amount | None = None
    """What the engine needs to start, with the cache of one request of the longest length, in
    bytes; None in estimates of earlier versions."""
    start_probability: Share | None = None
    """The probability that it starts, by how far logged start-ups are from their estimates; None in
    estimates of earlier versions."""


@dataclass(frozen=True, slots=True)
class ServingMemory(PoolMemory):
    """Memory of the fullest device; with a prefill pool, of the pool that decodes."""

    stages: list[StageMemory] | None = None
    """Memory of each pipeline stage, where there are several."""
    prefill: PoolMemory | None = None
    """Memory of the pool that computes prompts, where there is one."""


# Titles of the parts that a device's memory is the sum of.
MEMORY = {
    "weights_bytes": "Weights",
    "encoder_bytes": "Vision and audio encoders",
    "kv_needed_bytes": "KV cache needed",
    "activations_bytes": "Activations",
    "runtime_bytes": "Runtime",
}


def memory_parts(memory: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that a memory is the sum of, by the names of ``MEMORY``; encoders where it has any.

    ``weights_bytes`` of an estimate contain those of the encoders, as engines log them.
    """
    parts = {name: memory[name] for name in MEMORY}
    encoders = parts["encoder_bytes"]
    parts["weights_bytes"] = parts["weights_bytes"] - encoders
    if not np.any(encoders):
        del parts["encoder_bytes"]
    return parts


def _with_percentiles(schema: dict[str, Any], part: type[Any]) -> None:
    """Percentiles stand beside the other figures."""
    document_part(schema, part)
    percentiles = schema["properties"].pop("percentiles_s")
    schema["patternProperties"] = {
        pattern: {**value, "description": percentiles["description"]}
        for pattern, value in percentiles["patternProperties"].items()
    }


@dataclass(frozen=True, slots=True)
class ServingFigures(Part):
    """Latency and throughput; means over requests unless a name states a percentile."""

    __pydantic_config__ = DOCUMENTED | ConfigDict(json_schema_extra=_with_percentiles)

    ttft_s: Positive
    """Time to first token, in seconds."""
    tpot_s: Amount
    """Time per output token after the first, in seconds."""
    request_latency_s: Positive
    """Time from a request's arrival to its last token, in seconds."""
    output_tokens_per_s: Positive
    """Output tokens per second, of the whole deployment."""
    output_tokens_per_s_per_gpu: Positive
    """Output tokens per second and device."""
    percentiles_s: dict[Percentile, Amount] = field(default_factory=dict)
    """Percentile of the simulated requests, in seconds: ``ttft_p95_s``, ``tpot_p99_s``,
    ``request_latency_p50_s``."""
    goodput_requests_per_s: Amount | None = None
    """Requests per second whose times all keep the request's limits, where these were simulated."""
    requests_per_s: Amount | None = None
    """Requests per second of the whole deployment, where a result is a vector or a score."""
    input_tokens_per_s: Amount | None = None
    """Prompt tokens per second of the whole deployment, where a result is a vector or a score."""

    def to_json(self) -> dict[str, Any]:
        """Means, then percentiles beside them, then goodput."""
        out = Part.to_json(self)
        if not self.percentiles_s:
            del out["percentiles_s"]
            return out
        parts = ({name: value} if name != "percentiles_s" else value for name, value in out.items())
        return {name: figure for part in parts for name, figure in part.items()}

    @classmethod
    def _nested(cls, value: Any) -> Any:
        """Percentiles back into their field."""
        if not isinstance(value, Mapping):
            return value
        fields = {*cls.__slots__} - {"percentiles_s"}
        percentiles = {name: figure for name, figure in value.items() if name not in fields}
        means = {name: figure for name, figure in value.items() if name in fields}
        return {**means, "percentiles_s": percentiles}


@dataclass(frozen=True, slots=True)
class ServingCost(Part):
    """Cost of the devices; null where their price is unknown."""

    usd_per_hour: Known
    """All rented devices for an hour, in US dollars."""
    usd_per_request: Known
    """A request at the estimated throughput, in US dollars."""
    usd_per_million_output_tokens: Known
    """A million output tokens, in US dollars, where these bear the whole cost."""
    usd_per_million_input_tokens_alone: Known
    """A million prompt tokens, in US dollars, where prompts bear ``prefill_share`` of the cost."""
    usd_per_million_output_tokens_alone: Known
    """A million output tokens, in US dollars, where outputs bear the rest of the cost."""
    prefill_share: Known
    """Share of a request's cost that its prompt causes, 0 to 1."""
    devices_rented: Known = None
    """Devices that are paid for: those of whole machines, where machines are rented whole."""


@dataclass(frozen=True, slots=True)
class ServingEnergy(Part):
    """Power and energy of all devices, without their hosts."""

    watts: Positive
    """Mean power under the load, in watts."""
    watts_limit: Positive
    """The devices' power limits together, in watts."""
    joules_per_token: Positive
    """Energy of an output token, in joules."""
    joules_per_request: Positive
    """Energy of a request, in joules."""


@dataclass(frozen=True, slots=True)
class ServingParts(Part):
    """Times by what takes them: kinds of layers, collectives, the engine, waiting."""

    decode: Seconds
    """Parts of ``tpot_s``, in seconds."""
    prefill: Seconds
    """Parts of ``ttft_s``, in seconds."""


@dataclass(frozen=True, slots=True)
class Causes(Part):
    """Times by what bounds them: compute, memory traffic, network, overhead, waiting in a queue."""

    decode: dict[_CAUSE, Amount]
    """``tpot_s`` by cause, in seconds."""
    prefill: dict[_CAUSE, Amount]
    """``ttft_s`` by cause, in seconds."""


@dataclass(frozen=True, slots=True)
class Arrivals(Part):
    """Requests that arrive, beside what the layout serves at most."""

    load_factor: Amount
    """Arrivals over the requests per second that a full server is estimated to serve."""
    keeps_up_probability: Share
    """The probability that it serves what arrives, by the errors of such estimates."""


@dataclass(frozen=True, slots=True)
class Pool(Part):
    """One of two pools of devices."""

    gpus: Count
    """Devices of the pool."""
    requests_per_s: Positive
    """Requests per second that the pool serves at most."""
    busy: Amount
    """Load as a share of that maximum: 1 is saturated."""


@dataclass(frozen=True, slots=True)
class PoolFigures(Part):
    """The pools that compute prompts and outputs, and the KV cache sent from one to the other."""

    prefill: Pool
    """The pool that computes prompts."""
    decode: Pool
    """The pool that computes outputs."""
    transfer_bytes: Amount
    """KV cache that a request sends through the busiest device, in bytes."""
    transfer_s: Amount
    """Time to send it, in seconds."""
    requests_per_s: Positive
    """Requests per second that both pools serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate(EstimateBase):
    """An estimate of serving.

    One that is not feasible has reasons, and of its figures memory alone.
    """

    schema_version: Literal[1]
    """Version of this schema."""
    feasible: bool
    """Whether the layout can run within the limits of the request."""
    reasons: list[str]
    """Why it cannot run; empty when it can."""
    notes: list[str]
    """What to know beside the figures."""
    memory: ServingMemory
    """Memory of the fullest device."""
    serving: ServingFigures | None = None
    """Latency and throughput."""
    cost: ServingCost | None = None
    """Cost of the devices."""
    energy: ServingEnergy | None = None
    """Power and energy of the devices."""
    bands: dict[str, tuple[float, float]] | None = None
    """Lower and upper end, by figure, of the band in which eight of ten measured runs are expected,
    in the figure's unit."""
    intervals: IntervalsByFigure | None = None
    """The same at 50, 80 and 95 %, by figure and level: that share of measured runs is expected
    inside; the band is that of 80 %."""
    accuracy: Accuracy | None = None
    """What number formats keep of the accuracy of the model's base; None in estimates of earlier
    versions."""
    basis: dict[str, str] | None = None
    """What each figure, the price and the power rest on."""
    breakdown_s: ServingParts | None = None
    """Parts of the times, in seconds."""
    arrivals: Arrivals | None = None
    """How full the servers are, where requests arrive at a rate."""
    pools: PoolFigures | None = None
    """The two pools, where prompts have their own."""
    prefix_cache: PrefixCache | None = None
    """What prompts find in caches, where the workload states it by their size."""
    kv_tiers: list[KvTier] | None = None
    """Tiers below the devices' cache, nearest first, where the options ask for any."""
    causes_s: Causes | None = None
    """Causes of the times, in seconds, where a single layout is explained."""
    compression: CompressionEstimate | None = None
    """What it takes to make the checkpoint, where options ask for one and a layout needs it."""
    scaling: RentedReplicas | None = None
    """What the policy of scaling rents, in recipes whose request has one; the other figures are
    then those of one replica."""

    def figures(self) -> Mapping[str, Any]:
        """Latency and throughput, and what a token costs in money and energy, by name."""
        return {} if self.serving is None else all_figures(self.serving, self.cost, self.energy)


# Labels of the parts of a serving time.
TIME_TITLES = {
    "qkv": "Query, key, value projections",
    "o": "Output projection",
    "attention": "Attention",
    "indexer": "Sparse indexer",
    "launch": "Kernel launches",
    "mlp": "Feed-forward",
    "router": "Expert router",
    "experts": "Experts",
    "shared_experts": "Shared experts",
    "all_reduce": "All-reduce (TP)",
    "all_to_all": "All-to-all (EP)",
    "context": "Shared cache (CP)",
    "norms": "Norms and residuals",
    "embedding": "Embedding",
    "head": "Language-model head",
    "pipeline": "Pipeline send/receive (PP)",
    "options": "Own options: adapters, weights in host memory",
    "engine": "Engine overhead",
    "encoder": "Vision and audio encoders",
    "prefill_interference": "Prefills of other requests",
    "schedule": "Waiting for a step",
    "request": "Request handling",
    "prompts_ahead": "Prompts ahead",
    "engine_queue": "Waiting in the engine's queue",
    "window": "Waiting for a batch to fill",
    "receive": "Until the scheduler checks for requests",
    "ranks": "Until every rank has a prompt",
    "stream": "Until tokens are streamed",
    "draft": "Draft model",
    "transfer": "KV cache transfer to the decode pool",
    "handoff": "Hand-off between pools",
    "kv_load": "Cached blocks from host or store",
    "kv_copies": "Steps that wait for cached blocks",
}
