"""What an estimate looks like as JSON, for its schema: of serving and of training, feasible or not.

Estimates themselves are plain values (``serving/estimates.py``, ``training/estimates.py``); a test holds hundreds of them against this schema.
SI units, in the names. Memory is per device, of the fullest; throughput of the whole deployment unless a name says per_gpu.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.physics.serving.bottlenecks import CAUSES
from recipe_core.physics.serving.simulate import FIGURES

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Known = Amount | None
Seconds = dict[str, Amount]
PERCENTILE = rf"^({'|'.join(figure.removesuffix('_s') for figure in FIGURES)})_p\d+(\.\d+)?_s$"
_CAUSE = Literal[CAUSES]  # type: ignore[valid-type]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def _with_percentiles(schema: dict[str, Any]) -> None:
    schema["patternProperties"] = {PERCENTILE: {"type": "number", "minimum": 0}}


class StageMemory(_Part):
    """Bytes of one pipeline stage."""

    weights_bytes: Amount
    kv_needed_bytes: Amount
    activations_bytes: Amount
    runtime_bytes: Amount
    total_bytes: Amount


class PoolMemory(StageMemory):
    """Memory of a device. ``kv_cache_bytes``: the pool that the engine has for its cache, ``kv_needed_bytes``: what the load asks of it."""

    capacity_bytes: Positive
    usable_bytes: Positive
    kv_cache_bytes: float
    kv_cache_tokens: int
    max_concurrency: int
    max_context: Count
    max_context_at_load: Count
    largest_part: Literal["weights", "kv_needed", "activations", "runtime"]


class ServingMemory(PoolMemory):
    """``stages``: where there are several; ``prefill``: the pool that computes prompts, where there is one."""

    stages: list[StageMemory] | None = None
    prefill: PoolMemory | None = None


class ServingFigures(BaseModel):
    """Means over requests; percentiles as ``ttft_p95_s`` where they were simulated."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_with_percentiles)

    ttft_s: Positive
    tpot_s: Amount
    request_latency_s: Positive
    output_tokens_per_s: Positive
    output_tokens_per_s_per_gpu: Positive
    goodput_requests_per_s: Amount | None = None


class ServingCost(_Part):
    """Unknown where no price of the device is."""

    usd_per_hour: Known
    usd_per_request: Known
    usd_per_million_output_tokens: Known
    usd_per_million_input_tokens_alone: Known
    usd_per_million_output_tokens_alone: Known
    prefill_share: Known


class ServingEnergy(_Part):
    """Of all devices, without their hosts."""

    watts: Positive
    watts_limit: Positive
    joules_per_token: Positive
    joules_per_request: Positive


class ServingParts(_Part):
    """Seconds of ``tpot_s`` and of ``ttft_s`` by what takes them."""

    decode: Seconds
    prefill: Seconds


class Causes(_Part):
    """Seconds of ``tpot_s`` and of ``ttft_s`` by why."""

    decode: dict[_CAUSE, Amount]
    prefill: dict[_CAUSE, Amount]


class Pool(_Part):
    """A pool: its devices, what it serves at most, and the share of that which is asked of it."""

    gpus: Count
    requests_per_s: Positive
    busy: Amount


class PoolFigures(_Part):
    """Both pools, and what goes from one to the other for a request."""

    prefill: Pool
    decode: Pool
    transfer_bytes: Amount
    transfer_s: Amount
    requests_per_s: Positive


class _Estimate(_Part):
    schema_version: Literal[1]
    feasible: bool
    reasons: list[str]
    notes: list[str]
    bands: dict[str, tuple[float, float]] | None = None
    basis: dict[str, str] | None = None


class ServingEstimate(_Estimate):
    """An estimate of serving; one that is not feasible has reasons, and of its figures memory alone."""

    memory: ServingMemory
    serving: ServingFigures | None = None
    cost: ServingCost | None = None
    energy: ServingEnergy | None = None
    breakdown_s: ServingParts | None = None
    causes_s: Causes | None = None
    pools: PoolFigures | None = None


class TrainingStage(_Part):
    """Bytes of a device of one pipeline stage by what they hold."""

    parameters_bytes: Amount
    gradients_bytes: Amount
    optimizer_bytes: Amount
    master_bytes: Amount
    reference_bytes: Amount
    gathered_bytes: Amount
    activations_bytes: Amount
    loss_bytes: Amount
    temporary_bytes: Amount
    reserve_bytes: Amount


class TrainingMemory(TrainingStage):
    """Memory of a device of the fullest stage; ``host_bytes`` where states are kept on the host."""

    total_bytes: Positive
    usable_bytes: Positive
    capacity_bytes: Positive
    fullest_stage: Count
    stages: list[TrainingStage] | None = None
    host_bytes: Amount | None = None


class TrainingFigures(_Part):
    """A step; ``mfu`` against the peak of the precision."""

    step_s: Positive
    tokens_per_s: Positive
    tokens_per_s_per_gpu: Positive
    flops_per_s_per_gpu: Positive
    mfu: Positive
    peak_memory_bytes: Positive
    memory_by_stage_bytes: list[Positive]
    micro_batches: Annotated[int, Field(ge=1)]
    bubble_share: Share


class TrainingRun(_Part):
    """The whole run, with failures and checkpoints; unknown without a budget of tokens."""

    steps: Known
    wall_s: Known
    checkpoint_bytes: Known
    checkpoint_s: Known
    checkpoint_stall_s: Known
    storage_bytes: Known
    mtbf_s: Known
    checkpoint_interval_s: Known
    goodput: Known
    data_tokens_per_s: Known
    data_bytes_per_s: Known
    elastic_nodes: list[Annotated[int, Field(ge=1)]] | None = None


class TrainingCost(_Part):
    """Unknown where no price of the device is, or no budget of tokens."""

    usd_per_hour: Known
    usd_per_million_tokens: Known
    usd: Known


class TrainingEnergy(_Part):
    """Of all devices."""

    watts: Known
    joules_per_token: Known
    energy_joules: Known


class StepParts(_Part):
    """Seconds of a step by what takes them."""

    step: Seconds


class TrainingEstimate(_Estimate):
    """An estimate of training; one that is not feasible has reasons, and memory where that alone, or nothing, is in its way."""

    memory: TrainingMemory | None = None
    training: TrainingFigures | None = None
    run: TrainingRun | None = None
    cost: TrainingCost | None = None
    energy: TrainingEnergy | None = None
    breakdown_s: StepParts | None = None


Estimate = ServingEstimate | TrainingEstimate
