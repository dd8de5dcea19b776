"""What is wanted: the PlanRequest, one object that the API takes, the URL encodes and the command line reads from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from recipe_core.base.errors import InputError
from recipe_core.base.types import (
    Count,
    Degree,
    KvDtype,
    Positive,
    Share,
    Spread,
    Text,
    Tokens,
    WeightDtype,
)
from recipe_core.hardware.request import HardwareRequest

Goal = Literal["throughput", "latency", "ttft", "tpot", "cost", "gpus", "energy"]
Orientation = Literal["latency", "balanced", "throughput"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Speculative(_Part):
    """Speculative decoding: ``tokens`` drafted a step, each accepted with probability ``acceptance`` when those before it were.

    ``method``: ``mtp`` drafts with the model's own draft layers, ``eagle`` with a layer of the model's shape, ``ngram`` looks drafts up
    in the prompt. Left out: mtp where the model has draft layers, else eagle. ``model``: the checkpoint of an eagle draft, which a launch
    needs.
    """

    tokens: Annotated[int, Field(ge=1, le=16)]
    acceptance: Share
    method: Literal["mtp", "eagle", "ngram"] | None = None
    model: Text | None = None


LOADS = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}
"""The field of a workload that says the load, by its mode."""


class ServingWorkload(_Part):
    """Requests to be answered. Lengths are means, in tokens; a spread of 0.2 means lengths from 0.8 to 1.2 of the mean (0: exact).

    ``closed``: ``concurrency`` in flight; ``open``: ``request_rate`` arriving per second; ``static``: one ``batch`` of exact
    lengths; ``offline``: ``requests`` queued at once.
    """

    kind: Literal["serving"] = "serving"
    mode: Literal["closed", "open", "static", "offline"] = "closed"
    input_tokens: Tokens = 1024
    output_tokens: Tokens = 256
    input_spread: Spread | None = None
    output_spread: Spread | None = None
    concurrency: Count | None = None
    request_rate: Positive | None = None
    batch: Count | None = None
    requests: Count | None = None
    max_context: Tokens | None = None
    prefix_hit: Share = 0.0
    speculative: Speculative | None = None

    @model_validator(mode="after")
    def _load_fits_mode(self) -> Self:
        needed = LOADS[self.mode]
        if getattr(self, needed) is None:
            raise ValueError(f"mode {self.mode} needs {needed}")
        extra = sorted(
            name for name in LOADS.values() if name != needed and getattr(self, name) is not None
        )
        if extra:
            raise ValueError(
                f"mode {self.mode} takes {needed}, not {', '.join(extra)}; leave it out or change the mode"
            )
        if self.mode == "static" and (self.input_spread or self.output_spread):
            raise ValueError(
                "mode static has exact lengths; leave input_spread and output_spread out or change the mode"
            )
        if self.max_context is not None and self.max_context < self.longest_tokens:
            spread = " at their longest" if self.input_spread or self.output_spread else ""
            raise ValueError(
                f"max_context {self.max_context} is shorter than input_tokens + output_tokens = {self.longest_tokens}{spread}"
            )
        return self

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request that the stated lengths and spreads allow."""
        stated = ((self.input_tokens, self.input_spread), (self.output_tokens, self.output_spread))
        return sum(round(mean * (1 + (spread or 0.0))) for mean, spread in stated)


class Loading(_Part):
    """How data reaches the devices.

    ``workers`` a replica, each preparing ``tokens_per_s_per_worker``, from storage that gives ``read_bytes_per_s`` to all of them at
    ``bytes_per_token``; ``prefetch`` batches are made ahead (0: a step waits for its own).
    """

    workers: Annotated[int, Field(ge=1, le=1024)] = 2
    tokens_per_s_per_worker: Positive | None = None
    read_bytes_per_s: Positive | None = None
    bytes_per_token: Positive = 4.0
    prefetch: Annotated[int, Field(ge=0, le=1024)] = 2


class TrainingWorkload(_Part):
    """A training run: ``global_batch`` sequences a step; ``tokens`` is the whole budget (None: only a step is estimated).

    ``method``: ``dpo`` keeps a frozen copy of the model beside the trained one and asks both; its batch counts both answers of a pair.
    ``document_tokens``: mean length of what is put into sequences. ``packed``: documents share a sequence, and attention ends where
    they end; otherwise a sequence is one of them and padding. ``gradient_dtype``: what gradients are kept and reduced in (None: as the
    framework does). ``attention``: ``eager`` keeps the scores, ``flash`` does not. ``fused_loss``: logits are made piece by piece
    (None: where they do not fit at once, and the framework can). ``lora_rank``: of adapters; what they give is multiplied by
    ``lora_alpha`` / rank (None: by two). Failures: ``device_mtbf_hours`` of one device, ``storage_bytes_per_s`` of all checkpoint
    writers together, ``restart_s``, ``repair_s`` until a failed node is back (a spare: 0); ``min_nodes``: a run that needs no fewer
    nodes goes on without it. ``checkpoints``: training waits for a checkpoint until it is written (``synchronous``) or copied to the
    host (``asynchronous``), every ``checkpoint_interval_s`` (None: the interval that loses least); ``kept_checkpoints`` stay.
    """

    kind: Literal["training"]
    method: Literal["pretrain", "finetune", "lora", "qlora", "dpo"] = "pretrain"
    sequence_length: Tokens
    global_batch: Count
    tokens: Positive | None = None
    document_tokens: Tokens | None = None
    packed: bool = True
    gradient_dtype: Literal["fp32", "bf16"] | None = None
    optimizer: Literal["adamw", "adamw-8bit", "adafactor", "muon", "sgd"] = "adamw"
    attention: Literal["flash", "eager"] = "flash"
    fused_loss: bool | None = None
    lora_rank: Annotated[int, Field(ge=1, le=4096)] = 16
    lora_alpha: Positive | None = None
    device_mtbf_hours: Positive | None = None
    storage_bytes_per_s: Positive | None = None
    restart_s: Positive | None = None
    repair_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    min_nodes: Count | None = None
    checkpoints: Literal["synchronous", "asynchronous"] = "synchronous"
    checkpoint_interval_s: Positive | None = None
    kept_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 2
    loading: Loading | None = None


Workload = Annotated[ServingWorkload | TrainingWorkload, Field(discriminator="kind")]


class Limits(_Part):
    """What an acceptable plan must keep to. Times are means, or the ``percentile`` (95: what 95 % of requests stay below)."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    request_latency_ms: Positive | None = None
    usd_per_hour: Positive | None = None
    usd_per_million_output_tokens: Positive | None = None
    joules_per_token: Positive | None = None
    watts: Positive | None = None
    gpus: Count | None = None
    output_tokens_per_s_at_least: Positive | None = None
    percentile: Annotated[float, Field(ge=50, le=99.9)] | None = None


class Objective(_Part):
    """What to optimise, and the limits that come first.

    ``weights`` compares candidates by several goals at once: the product of the goals' quantities, each to the power of its weight (less is
    better, throughput divides). ``orientation`` is a set of weights by name: ``latency`` (time per output token first), ``throughput``
    (tokens per device first), ``balanced`` (both alike). Either goes before ``optimize``.
    """

    optimize: Goal = "throughput"
    weights: dict[Goal, Annotated[float, Field(gt=0, le=100)]] = {}
    orientation: Orientation | None = None
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.weights and self.orientation is not None:
            raise ValueError("takes weights or an orientation, not both")
        return self

    @property
    def goals(self) -> dict[Goal, float]:
        """What counts, with its weight."""
        named: dict[Orientation, dict[Goal, float]] = {
            "latency": {"tpot": 3.0, "ttft": 1.0, "cost": 1.0},
            "balanced": {"tpot": 1.0, "cost": 1.0},
            "throughput": {"cost": 3.0, "tpot": 1.0},
        }
        return named[self.orientation] if self.orientation else self.weights or {self.optimize: 1.0}


class Options(_Part):
    """What the search may vary; empty ``engines`` means every engine that can be built for the device.

    ``hardware``: other clusters, judged side by side with the request's. ``loads``: other loads than the workload's (concurrency, batch,
    requests or requests per second, by the mode), ``max_batched_tokens``: other limits than the engine's default, ``speculative``: drafts
    besides the workload's; each is combined with every split. ``context_parallel``: also splits whose ranks share a cache (cp).
    ``disaggregated``: also deployments with a prefill pool of their own.

    ``engine_options``: the engine's own options by name (parsers of tools and reasoning, LoRA adapters …), passed on when it is started;
    what the candidate or the workload says cannot be among them. ``environment``: variables of its processes, such as
    ``NCCL_SOCKET_IFNAME``; secrets cannot be among either.
    """

    engines: tuple[Text, ...] = ()
    weight_dtypes: Annotated[tuple[WeightDtype, ...], Field(min_length=1)] = ("auto",)
    kv_dtypes: Annotated[tuple[KvDtype, ...], Field(min_length=1)] = ("auto",)
    nodes: Literal["any", "all"] = "any"
    hardware: Annotated[tuple[HardwareRequest, ...], Field(max_length=64)] = ()
    loads: Annotated[tuple[Positive, ...], Field(max_length=256)] = ()
    max_batched_tokens: Annotated[tuple[Tokens, ...], Field(max_length=64)] = ()
    speculative: Annotated[tuple[Speculative, ...], Field(max_length=16)] = ()
    context_parallel: bool = False
    disaggregated: bool = False
    engine_options: dict[Text, Any] = {}
    environment: dict[Text, str] = {}


class PoolRequest(_Part):
    """The prefill pool of a disaggregated deployment: its split, and how many ``replicas`` of it there are."""

    tp: Degree
    pp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    replicas: Degree = 1

    @property
    def devices(self) -> int:
        """Devices of the pool."""
        return self.tp * self.pp * self.dp * self.replicas


class CandidateRequest(_Part):
    """One split, or part of one: a field left out means "choose".

    With ``prefill`` prompts are computed by a pool of their own, and the other degrees are those of the pool that decodes; ``replicas``
    of that pool are whole copies, which dp is not where experts are shared. ``speculative`` goes before the workload's. What follows
    ``replicas`` is training's; ``shard`` counts the ranks that divide states (fewer than dp × cp: HSDP). ``recompute_layers``: how many
    layers of the model are recomputed (all). ``offload``: optimizer states live in host memory, or on its disks. ``gradient_sync``: whether
    replicas exchange gradients once a step or after every micro-batch.
    """

    engine: Text | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    dp: Degree | None = None
    ep: Degree | None = None
    cp: Degree | None = None
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype | None = None
    max_batched_tokens: Tokens | None = None
    max_num_seqs: Count | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    eager: bool | None = None
    speculative: Speculative | None = None
    prefill: PoolRequest | None = None
    replicas: Degree | None = None
    virtual_stages: Degree | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    micro_batch: Count | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    precision: Literal["bf16", "fp16", "fp8"] | None = None
    schedule: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v"] | None = None
    shard: Degree | None = None
    sequence_parallel: bool | None = None
    recompute_layers: Degree | None = None
    offload: Literal["none", "optimizer", "optimizer-nvme"] | None = None
    gradient_sync: Literal["micro-batch", "step"] | None = None


class PlanRequest(_Part):
    """Model, hardware, workload and objective: all that a plan, an estimate or a bundle is made from."""

    model: Text | dict[str, Any]
    hardware: HardwareRequest
    workload: Workload
    objective: Objective = Objective()
    options: Options = Options()
    candidate: CandidateRequest | None = None

    @model_validator(mode="before")
    @classmethod
    def _kind_is_serving(cls, value: Any) -> Any:
        """A workload without ``kind`` is serving."""
        if (
            isinstance(value, Mapping)
            and isinstance(value.get("workload"), Mapping)
            and "kind" not in value["workload"]
        ):
            return {**value, "workload": {"kind": "serving", **value["workload"]}}
        return value

    @classmethod
    def parse(cls, value: Any) -> PlanRequest:
        """The request in ``value`` (plain Python values); raises InputError naming the first wrong field and what it takes."""
        if not isinstance(value, Mapping):
            raise InputError(
                f"a request is an object with model, hardware and workload, not {type(value).__name__}.",
                hint="See docs/request.md for an example.",
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise _first(error, value) from None

    @property
    def is_training(self) -> bool:
        """Whether the workload is training rather than serving."""
        return isinstance(self.workload, TrainingWorkload)

    def to_json(self) -> dict[str, Any]:
        """Plain values with every default written out, so that a stored request keeps its meaning; unset fields are left out."""
        out: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return out


def _first(error: ValidationError, value: Mapping[str, Any]) -> InputError:
    """The first problem as one sentence: field, value, what is wrong, and the fix."""
    details = error.errors(include_url=False)
    problem = next((p for p in details if p["type"] == "extra_forbidden"), details[0])
    path = [str(step) for step in problem["loc"] if step not in _NO_FIELD]
    message = problem["msg"].removeprefix("Value error, ")
    field = ".".join(path) or None
    hint = None
    if problem["type"] == "missing":
        return InputError(
            "is missing.", field=field, hint="Add it; see docs/request.md for an example."
        )
    if problem["type"] == "extra_forbidden":
        message, hint = (
            "is not a known field",
            f"Known here: {', '.join(_known(path[:-1], value))}.",
        )
    given = problem.get("input")
    shown = (
        ""
        if isinstance(given, Mapping | list | tuple | BaseModel)
        or problem["type"] == "extra_forbidden"
        else f" (got {given!r:.80})"
    )
    return InputError(f"{message[0].lower() + message[1:]}{shown}.", field=field, hint=hint)


_NO_FIELD = ("serving", "training", "str", "constrained-str", "dict[any,any]", "dict[str,any]")
"""Steps of an error's place that name a choice of the schema."""

_PARTS: dict[str, type[BaseModel]] = {
    "hardware": HardwareRequest,
    "objective": Objective,
    "objective.limits": Limits,
    "options": Options,
    "candidate": CandidateRequest,
    "candidate.speculative": Speculative,
    "candidate.prefill": PoolRequest,
    "workload.speculative": Speculative,
    "workload.loading": Loading,
}


def _known(path: list[str], value: Mapping[str, Any]) -> list[str]:
    where = ".".join(path)
    if where == "workload":
        kind = (
            TrainingWorkload
            if isinstance(w := value.get("workload"), Mapping) and w.get("kind") == "training"
            else ServingWorkload
        )
        return list(kind.model_fields)
    return list(_PARTS.get(where, PlanRequest).model_fields)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a PlanRequest."""
    return TypeAdapter(PlanRequest).json_schema()
