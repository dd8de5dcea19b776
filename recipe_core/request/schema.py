"""What is wanted: the PlanRequest.

One object that the API takes, the URL encodes and the command line reads from a file. The string
under each field is its description everywhere (``recipe_core.base.described``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from recipe_core.base.described import DESCRIBED, description_of, field_of, models_in
from recipe_core.base.errors import InputError
from recipe_core.base.texts import Name
from recipe_core.base.types import (
    Count,
    Degree,
    KvDtype,
    Positive,
    Share,
    Spread,
    Task,
    Text,
    Tokens,
    WeightDtype,
)
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.kv_offload import KvOffload
from recipe_core.request.over_time import OverTime
from recipe_core.request.phases import Evaluation, Phases
from recipe_core.request.reuse import PrefixReuse, check_curve
from recipe_core.request.scaling import Scaling
from recipe_core.request.start import Start
from recipe_core.request.supervision import Supervision

Goal = Literal["throughput", "latency", "ttft", "tpot", "cost", "gpus", "energy"]
Interval = Annotated[int, Field(ge=1, le=1000)]
Orientation = Literal["latency", "balanced", "throughput"]


class _Part(BaseModel):
    model_config = DESCRIBED


class Speculative(_Part):
    """Speculative decoding: tokens are drafted, then verified in one step."""

    tokens: Annotated[int, Field(ge=1, le=16)]
    """Tokens drafted per step."""

    acceptance: Share
    """Probability (0 to below 1) that a drafted token is accepted, given that those before it
    were."""

    method: Literal["mtp", "eagle", "ngram"] | None = None
    """How drafts are made: ``mtp`` by the model's own draft layers, ``eagle`` by one extra layer of
    the model's shape, ``ngram`` looked up in the prompt. Left out: ``mtp`` where the model has
    draft layers, else ``eagle``."""

    model: Name | None = None
    """Checkpoint of an ``eagle`` draft. An estimate does without; a launch needs it."""


class MediaItems(_Part):
    """Images, or pieces of sound, in every prompt besides its text."""

    per_request: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Items in a prompt, on average."""

    tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    """Tokens of the prompt that an item becomes."""


GAIN_FROM_LOAD: frozenset[Goal] = frozenset({"throughput", "cost", "energy"})
"""Goals that more requests in flight are good for."""
TIME_LIMITS = ("ttft_ms", "tpot_ms", "request_latency_ms")
"""Limits on times of a request, which more requests in flight lengthen."""

MEDIA: dict[str, Literal["image", "audio"]] = {"images": "image", "audio": "audio"}
"""Fields of a workload that put images or sound into prompts, and what the model must read."""

POOLED: tuple[Task, ...] = ("embed", "score")
"""Tasks of which a result is pooled from a prompt: nothing is decoded."""

LOADS = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}
"""The field of a workload that says the load, by its mode."""


class ServingWorkload(_Part):
    """Requests to be served: how long they are and how they arrive."""

    kind: Literal["serving"] = "serving"
    """Kind of workload: ``serving``, also where it is left out, or ``training``."""

    task: Task | None = None
    """What a request asks for: ``generate`` a text, ``embed`` a text as a vector, or ``score`` a
    text or a pair of them (rerankers). A vector or a score comes with the prompt: there are no
    output tokens. Left out, what the model is made for."""

    mode: Literal["closed", "open", "static", "offline"] = "closed"
    """How requests arrive: ``closed`` keeps ``concurrency`` in flight, ``open`` sends
    ``request_rate`` per second, ``static`` runs one ``batch`` of exact lengths, ``offline`` queues
    ``requests`` at once. Each takes its own load field and refuses the others."""

    input_tokens: Tokens = 1024
    """Mean length of a prompt, in tokens; of its text, where it also holds images or sound."""

    output_tokens: Tokens = 256
    """Mean length of an answer, in tokens; 1 where ``task`` is ``embed`` or ``score``."""

    input_spread: Spread | None = None
    """Spread of prompt lengths as a share of the mean: 0.2 draws them uniformly from 0.8 to 1.2 of
    it, 0 makes them exact. It shapes percentiles and the longest request. Left out, percentiles
    are simulated with 0.1. Not for ``mode: static``."""

    output_spread: Spread | None = None
    """Spread of answer lengths as a share of the mean, as ``input_spread`` for prompts."""

    concurrency: Count | None = None
    """Requests in flight; needed by ``mode: closed``, and only there. May be left out where
    ``objective.limits`` bounds a time (``ttft_ms``, ``tpot_ms``, ``request_latency_ms``) and
    throughput, cost or energy counts: then every split is judged at its best load within the
    limits."""

    request_rate: Positive | None = None
    """Arrivals in requests per second; needed by ``mode: open``, and only there."""

    batch: Count | None = None
    """Requests in the batch; needed by ``mode: static``, and only there."""

    requests: Count | None = None
    """Requests queued at the start; needed by ``mode: offline``, and only there."""

    max_context: Tokens | None = None
    """Longest request that the engine must accept, prompt and answer together, in tokens; left out,
    the workload's longest request, rounded up to a multiple of 1,024 tokens as far as the model's
    context allows."""

    prefix_hit: Share = 0.0
    """Share of a prompt's tokens found in the prefix cache, 0 to below 1."""

    prefix_reuse: Annotated[tuple[PrefixReuse, ...], Field(max_length=256)] = ()
    """What share would be found in caches of several sizes, as a trace shows it; every split then
    has the share of its own cache. Instead of ``prefix_hit``."""

    prefix_affinity: bool = False
    """Whether requests that share a prefix reach the same replica (a gateway that routes by prefix,
    or sessions that stick), so that the caches of replicas add up; for ``prefix_reuse``."""

    over_time: OverTime | None = None
    """How the load changes over hours, weeks and months, for ``recipe simulate``; a plan is made
    for one load and does not depend on it."""

    speculative: Speculative | None = None
    """Speculative decoding; left out, tokens are decoded one at a time."""

    images: MediaItems | None = None
    """Images in every prompt, for models that read them: their tokens come on top of
    ``input_tokens``, and encoding them delays the first token. Left out, prompts are text."""

    audio: MediaItems | None = None
    """Sound in every prompt, as ``images``."""

    modalities: tuple[Literal["image", "audio"], ...] | None = None
    """What the engine reads besides text (``image`` includes video): the towers of the rest are not
    loaded, with ``[]`` none is. Left out, all that the model has."""

    @model_validator(mode="before")
    @classmethod
    def _one_result(cls, value: Any) -> Any:
        """A vector or a score counts as one token of output."""
        if isinstance(value, Mapping) and value.get("task") in POOLED:
            return {"output_tokens": 1, **value}
        return value

    @model_validator(mode="after")
    def _task_has_no_answer(self) -> Self:
        if not self.pooled:
            return self
        stated = {
            "output_tokens": self.output_tokens != 1,
            "output_spread": bool(self.output_spread),
            "speculative": self.speculative is not None,
        }
        extra = ", ".join(name for name, is_stated in stated.items() if is_stated)
        if extra:
            raise ValueError(f"task {self.task} has no output tokens; leave {extra} out")
        return self

    @model_validator(mode="after")
    def _load_fits_mode(self) -> Self:
        needed = LOADS[self.mode]
        if getattr(self, needed) is None and self.mode != "closed":  # a closed loop's is searched
            raise ValueError(f"mode {self.mode} needs {needed}")
        loads = sorted(set(LOADS.values()) - {needed})
        extra = ", ".join(name for name in loads if getattr(self, name) is not None)
        if extra:
            remedy = "leave it out or change the mode"
            raise ValueError(f"mode {self.mode} takes {needed}, not {extra}; {remedy}")
        if self.mode == "static" and (self.input_spread or self.output_spread):
            remedy = "leave input_spread and output_spread out or change the mode"
            raise ValueError(f"mode static has exact lengths; {remedy}")
        return self

    @model_validator(mode="after")
    def _one_reuse(self) -> Self:
        if self.prefix_reuse and self.prefix_hit:
            raise InputError(
                f"is given beside prefix_hit {self.prefix_hit:g}, which it replaces.",
                field="workload.prefix_reuse",
                hint="Leave one of them out.",
            )
        if self.prefix_affinity and not self.prefix_reuse:
            raise ValueError(
                "prefix_affinity needs prefix_reuse: what caches of several sizes hold"
            )
        check_curve(self.prefix_reuse)
        return self

    @model_validator(mode="after")
    def _context_holds_requests(self) -> Self:
        if self.max_context is not None and self.max_context < self.longest_tokens:
            spread = " at their longest" if self.input_spread or self.output_spread else ""
            media = " + images and audio" if self.media_tokens else ""
            needed = f"input_tokens + output_tokens{media} = {self.longest_tokens}{spread}"
            raise ValueError(f"max_context {self.max_context} is shorter than {needed}")
        return self

    @property
    def pooled(self) -> bool:
        """Whether requests end with their prompt: ``task`` is ``embed`` or ``score``."""
        return self.task in POOLED

    def as_task(self, task: Task) -> ServingWorkload:
        """The same requests for another task; a vector or a score has no output tokens."""
        if task not in POOLED:
            return self.model_copy(update={"task": task})
        none = {"output_tokens": 1, "output_spread": None, "speculative": None}
        return self.model_copy(update={"task": task, **none})

    @property
    def media_tokens(self) -> int:
        """Tokens of a prompt's images and sound, on average, rounded up."""
        items = (part for part in (self.images, self.audio) if part is not None)
        return math.ceil(sum(part.per_request * part.tokens for part in items))

    @property
    def prompt_tokens(self) -> int:
        """Mean length of a whole prompt: its text, images and sound."""
        return self.input_tokens + self.media_tokens

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request that the stated lengths and spreads allow."""
        answer = (0 if self.pooled else self.output_tokens, self.output_spread)
        lengths = ((self.input_tokens, self.input_spread), answer)
        text = sum(round(mean * (1 + (spread or 0.0))) for mean, spread in lengths)
        return text + self.media_tokens


class Loading(_Part):
    """How training data reaches the devices."""

    workers: Annotated[int, Field(ge=1, le=1024)] = 2
    """Loader processes per replica."""

    tokens_per_s_per_worker: Positive | None = None
    """Tokens per second that one loader process prepares; left out, 2 million, which assumes data
    that is tokenized beforehand."""

    read_bytes_per_s: Positive | None = None
    """Rate of the storage that holds the data, in bytes per second for all readers together; left
    out, that of ``storage``; without either it does not limit."""

    bytes_per_token: Positive = 4.0
    """Size of the stored data, in bytes per token."""

    prefetch: Annotated[int, Field(ge=0, le=1024)] = 2
    """Batches prepared ahead; with 0 every step waits for its own."""


REINFORCED = ("grpo", "ppo")
"""Methods that learn from answers which the model gives while it is trained."""


class Rollout(_Part):
    """How answers are sampled in every step of reinforcement learning, and scored."""

    prompts: Count
    """Prompts of a step."""

    samples: Count = 8
    """Answers sampled for each prompt."""

    prompt_tokens: Tokens = 512
    """Mean length of a prompt, in tokens."""

    response_tokens: Tokens
    """Mean length of an answer, in tokens."""

    max_prompt_tokens: Tokens | None = None
    """Longest prompt that is kept, in tokens; left out, twice the mean."""

    max_response_tokens: Tokens | None = None
    """Longest answer, at which sampling stops, in tokens; left out, twice the mean."""

    placement: Literal["colocated", "apart"] = "colocated"
    """Where answers are sampled: on the devices that train, which wait meanwhile (``colocated``),
    or on ``devices`` of their own, one step ahead of the training (``apart``)."""

    devices: Count | None = None
    """Devices of the cluster that only sample; needed by ``placement: apart``, and only there."""

    engine: Text = "vllm"
    """Serving engine that samples, by name."""

    tp: Degree | None = None
    """Tensor-parallel ranks of a copy of the engine; left out, the fastest that fits."""

    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a device's memory that the engine takes, above 0 up to 1; left out, its default, or
    what the states of the training leave of it."""

    offload: bool | None = None
    """Whether states of the training and frozen models wait in the host's memory while they are
    not used, so that what works has the device; left out, only where all does not fit."""

    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Times that the answers of a step are trained on."""

    reference: bool = True
    """Whether a frozen copy of the model scores every answer (for the KL divergence)."""

    old_log_probs: bool = True
    """Whether the model scores its own answers again before they are trained on, as its engine's
    numbers are not exact enough."""

    reward: Literal["rule", "model"] = "rule"
    """What rewards an answer: a program (``rule``), or a frozen model of the size of the trained
    one (``model``)."""

    reward_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Time that a step waits for rewards besides such a model, in seconds."""

    @model_validator(mode="after")
    def _devices_fit_placement(self) -> Self:
        if self.placement == "apart" and self.devices is None:
            raise ValueError("placement apart needs devices: how many only sample")
        if self.placement == "colocated" and self.devices is not None:
            raise ValueError(
                f"placement colocated samples on all devices; leave devices {self.devices} out or "
                "set placement: apart"
            )
        return self

    @model_validator(mode="after")
    def _longest_is_longest(self) -> Self:
        for name in ("prompt", "response"):
            longest, mean = getattr(self, f"max_{name}_tokens"), getattr(self, f"{name}_tokens")
            if longest is not None and longest < mean:
                raise ValueError(
                    f"max_{name}_tokens {longest} is shorter than the mean, {name}_tokens {mean}; "
                    "raise it"
                )
        return self

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.max_prompt_tokens or 2 * self.prompt_tokens

    @property
    def longest_response(self) -> int:
        """Tokens at which sampling stops."""
        return self.max_response_tokens or 2 * self.response_tokens

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest prompt with the longest answer."""
        return self.longest_prompt + self.longest_response

    @property
    def sequences(self) -> int:
        """Answers of a step."""
        return self.prompts * self.samples

    @property
    def mean_tokens(self) -> int:
        """Tokens of a mean prompt with a mean answer."""
        return self.prompt_tokens + self.response_tokens


class TrainingWorkload(_Part):
    """A training run: what is trained, on how much, in which steps."""

    kind: Literal["training"]
    """Kind of workload: ``serving``, also where it is left out, or ``training``."""

    method: Literal["pretrain", "finetune", "lora", "qlora", "dpo", "grpo", "ppo"] = "pretrain"
    """What is trained: all weights (``pretrain``, ``finetune``), adapters on a frozen model
    (``lora``; ``qlora`` keeps the model in 4 bits), all weights against a frozen copy of the
    model (``dpo``, where both answers of a pair count in the batch), or all weights by rewards of
    the model's own answers (``grpo``, and ``ppo`` with a critic; both need ``rollout``)."""

    rollout: Rollout | None = None
    """How answers are sampled and scored; needed by ``method: grpo`` and ``ppo``, and only there.
    ``sequence_length`` is then the longest prompt with its answer, ``global_batch`` the answers of
    an optimizer step, ``tokens`` those of prompts and answers trained on; the first two may be left
    out."""

    sequence_length: Tokens
    """Length of a training sequence, in tokens."""

    global_batch: Count
    """Sequences per optimizer step, over all devices."""

    tokens: Positive | None = None
    """Token budget of the whole run, in tokens; left out, that of ``phases``; without any, only a
    step is estimated, not the time and cost of a run."""

    phases: Phases | None = None
    """Parts of the run with another batch, sequence length or context parallelism, in order: a ramp
    of the batch, a long context at the end. Their tokens add up to ``tokens``. The figures of a
    step are those of ``sequence_length`` and ``global_batch``; time and cost are of all phases, and
    a split has to run in each. Left out, the whole run is alike."""

    evaluation: Evaluation | None = None
    """Evaluations on held-out tokens during the run; left out, none."""

    data_format: Literal["text", "chat", "preference"] | None = None
    """What the data holds: running ``text``, conversations of which only the answers are learnt
    (``chat``), or prompts with a better and a worse answer (``preference``, of ``dpo``). Left out,
    what the framework's launch trains on."""

    document_tokens: Tokens | None = None
    """Mean length of the documents that fill the sequences, in tokens; left out, a document is as
    long as a sequence."""

    packed: bool = True
    """Whether documents share a sequence, with attention ending where they end; otherwise a
    sequence is one document and padding."""

    gradient_dtype: Literal["fp32", "bf16"] | None = None
    """Number format in which gradients are kept and reduced; left out, the framework's own."""

    state_dtype: Literal["fp32", "bf16"] | None = None
    """Number format of weights, gradients and optimizer states: ``bf16`` keeps all of them in 16
    bits, without a copy in fp32 (8 bytes a parameter with AdamW); left out, or ``fp32``, they are
    mixed as the framework keeps them."""

    optimizer: Literal["adamw", "adamw-8bit", "adafactor", "muon", "sgd"] = "adamw"
    """Optimizer; it decides the bytes of state per trained parameter."""

    attention: Literal["flash", "eager"] = "flash"
    """Attention kernel: ``eager`` keeps the scores in memory, ``flash`` does not."""

    fused_loss: bool | None = None
    """Whether logits are made piece by piece, so that they are never whole in memory; left out,
    only where they do not fit otherwise and the framework can."""

    lora_rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Rank of the adapters of ``lora`` and ``qlora``."""

    lora_targets: Literal["attention", "mlp", "all"] = "all"
    """Matrices that get adapters: those of attention, those of feed-forward blocks (of experts only
    the shared ones), or both."""

    lora_alpha: Positive | None = None
    """Scale of the adapters, whose output is multiplied by alpha / rank; left out, twice the
    rank."""

    device_mtbf_hours: Positive | None = None
    """Mean time between failures of one device, in hours, each of which takes its node away; left
    out, what published fleets of the device's architecture saw, 50,660 hours on Hopper in nodes of
    8, and 37 % of the failures take a node away, the others a restart."""

    storage: Text | None = None
    """Storage that holds the data and takes the checkpoints, by the name of its tier; left out,
    ``storage_bytes_per_s`` (not together with it), else the disk that the device's profile
    measured, if it did. ``loading.read_bytes_per_s`` comes before it."""

    storage_bytes_per_s: Positive | None = None
    """Rate at which all nodes together write a checkpoint, in bytes per second; left out, that of
    ``storage``, else 0.98 GB/s per node."""

    storage_usd_per_gb_month: Positive | None = None
    """Price of the storage for checkpoints, in US dollars per GB and month; left out, it is not
    part of the cost."""

    restart_s: Positive | None = None
    """Time from a failure until training runs again on working nodes, in seconds; left out, 600,
    and with ``storage`` the time to read a checkpoint besides."""

    repair_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Time until a failed node is back, in seconds; 0 where another is always at hand. With
    ``spare_nodes`` 0 stands for one day."""

    spare_nodes: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Nodes that stand by, besides those of ``hardware``, paid for like them: a failed node is
    replaced by one with a restart. A failure waits for a repair only when all spares are used up.
    Left out, none."""

    slow_node_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the nodes that are slower than the others by a tenth and stay in the run; each step
    waits for the slowest. Left out, none: they are found and replaced. MegaScale found 0.005."""

    min_nodes: Count | None = None
    """Fewest nodes with which an elastic run goes on after a failure; left out, the run waits for
    the repair."""

    checkpoints: Literal["synchronous", "asynchronous"] = "synchronous"
    """How long training waits for a checkpoint: until it is written (``synchronous``), or only
    until it is copied to the host's memory (``asynchronous``)."""

    checkpoint_interval_s: Positive | None = None
    """Time between checkpoints, in seconds; left out, the interval that loses least (Young)."""

    kept_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Checkpoints that stay on storage."""

    loading: Loading | None = None
    """How data reaches the devices; left out, as its fields say."""

    @model_validator(mode="before")
    @classmethod
    def _phases_have_the_tokens(cls, value: Any) -> Any:
        """Without ``tokens``, those of all phases."""
        if not isinstance(value, Mapping) or value.get("tokens") is not None:
            return value
        try:
            phases = TypeAdapter(Phases).validate_python(value.get("phases"))
        except ValidationError:  # none, or the field's own error says more
            return value
        return {**value, "tokens": sum(phase.tokens for phase in phases)}

    @model_validator(mode="after")
    def _one_budget_and_storage(self) -> Self:
        phased = sum(phase.tokens for phase in self.phases or ())
        if self.phases and not math.isclose(phased, self.tokens or 0.0, rel_tol=1e-6):
            raise InputError(
                f"add up to {phased:,.0f} tokens, not to workload.tokens, {self.tokens:,.0f}.",
                field="workload.phases",
                hint="Leave workload.tokens out, or correct one of them.",
            )
        if self.storage is not None and self.storage_bytes_per_s is not None:
            raise InputError(
                f"is given beside the storage tier {self.storage}, which has a rate of its own.",
                field="workload.storage_bytes_per_s",
                hint="Leave one of them out.",
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_rollout(cls, value: Any) -> Any:
        """Without them a step is one optimizer step on all answers, at their longest."""
        rollout = value.get("rollout") if isinstance(value, Mapping) else None
        if rollout is None:
            return value
        try:
            sampled = Rollout.model_validate(rollout)
        except ValidationError:
            return value  # said once, of the field itself
        sizes = {
            "sequence_length": sampled.longest_tokens,
            "global_batch": sampled.sequences,
        }
        return {**sizes, **value}

    @model_validator(mode="after")
    def _rollout_fits_method(self) -> Self:
        if self.method not in REINFORCED:
            if self.rollout is not None:
                raise ValueError(
                    f"method {self.method} samples no answers; leave rollout out or use grpo or ppo"
                )
            return self
        if self.rollout is None:
            raise ValueError(
                f"method {self.method} needs rollout: prompts and response_tokens of a step"
            )
        sampled, batch = self.rollout, self.global_batch
        if sampled.longest_tokens > self.sequence_length:
            raise ValueError(
                f"sequence_length {self.sequence_length} is shorter than max_prompt_tokens + "
                f"max_response_tokens = {sampled.longest_tokens}; leave it out"
            )
        if sampled.sequences % batch:
            raise ValueError(
                f"prompts × samples = {sampled.sequences} answers are not divisible by "
                f"global_batch {batch}; leave it out or use a divisor"
            )
        alike = {"document_tokens": self.document_tokens, "phases": self.phases}
        stated = [name for name, value in {**alike, "evaluation": self.evaluation}.items() if value]
        if stated:
            raise ValueError(
                f"method {self.method} trains on the lengths of rollout; leave "
                f"{' and '.join(stated)} out"
            )
        return self


Workload = Annotated[ServingWorkload | TrainingWorkload, Field(discriminator="kind")]


class Limits(_Part):
    """What an acceptable plan must keep. A limit left out does not bind."""

    ttft_ms: Positive | None = None
    """Longest mean time to first token, queueing included, in milliseconds; the percentile's where
    ``percentile`` is set."""

    tpot_ms: Positive | None = None
    """Longest mean time per output token, in milliseconds; the percentile's where ``percentile`` is
    set."""

    request_latency_ms: Positive | None = None
    """Longest mean time from a request's arrival to its last token, in milliseconds; the
    percentile's where ``percentile`` is set."""

    usd_per_hour: Positive | None = None
    """Highest price of all devices used, in US dollars per hour."""

    usd_per_million_output_tokens: Positive | None = None
    """Highest price of a million output tokens, in US dollars."""

    wall_hours: Positive | None = None
    """Longest time to finish a training run, failures included, in hours. Training only, with
    ``workload.tokens``."""

    usd: Positive | None = None
    """Highest cost of a whole training run, in US dollars. Training only, with
    ``workload.tokens``."""

    joules_per_token: Positive | None = None
    """Highest energy in joules per output token, or per trained token."""

    watts: Positive | None = None
    """Highest power of all devices used, in watts."""

    gpus: Count | None = None
    """Most devices that may be used."""

    output_tokens_per_s_at_least: Positive | None = None
    """Lowest throughput of the whole deployment, in output tokens per second."""

    percentile: Annotated[float, Field(ge=50, le=99.9)] | None = None
    """Percentile that the limits on times apply to: 95 bounds the time that 95 % of requests stay
    below. Left out, they apply to means. Percentiles are simulated request by request for the best
    splits, which takes some seconds."""


class Objective(_Part):
    """What to optimise, and the limits that come first."""

    optimize: Goal = "throughput"
    """What counts most: ``throughput`` (tokens per second), ``latency`` (of a whole request),
    ``ttft`` (time to first token), ``tpot`` (time per output token), ``cost`` (per token), ``gpus``
    (fewest devices) or ``energy`` (per token). ``weights`` and ``orientation`` go before it."""

    weights: dict[Goal, Annotated[float, Field(gt=0, le=100)]] = {}
    """Several goals at once, each with a weight up to 100: their quantities are multiplied, each to
    the power of its weight. Not together with ``orientation``."""

    orientation: Orientation | None = None
    """Weights by name: ``latency`` (time per output token first), ``throughput`` (tokens per device
    first) or ``balanced`` (both alike). Not together with ``weights``."""

    limits: Limits = Limits()
    """Limits that an acceptable plan must keep."""

    confidence: Annotated[float, Field(ge=0.5, le=0.99)] | None = None
    """Probability with which all limits must hold, if the plan were measured; by the calibrated
    intervals of the estimates. Left out, estimates themselves are held against the limits, which
    is a coin toss where one just keeps them."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.weights and self.orientation is not None:
            raise ValueError("takes weights or an orientation, not both")
        return self

    @property
    def goals(self) -> dict[Goal, float]:
        """What counts, with its weight."""
        weights: dict[Orientation, dict[Goal, float]] = {
            "latency": {"tpot": 3.0, "ttft": 1.0, "cost": 1.0},
            "balanced": {"tpot": 1.0, "cost": 1.0},
            "throughput": {"cost": 3.0, "tpot": 1.0},
        }
        if self.orientation:
            return weights[self.orientation]
        return self.weights or {self.optimize: 1.0}


class Options(_Part):
    """What the search may vary; each choice is combined with every split."""

    engines: tuple[Text, ...] = ()
    """Engines to judge, by name; none named: the preferred one of the device."""

    weight_dtypes: Annotated[tuple[WeightDtype, ...], Field(min_length=1)] = ("auto",)
    """Number formats of the weights to judge; ``auto`` is the checkpoint's own."""

    kv_dtypes: Annotated[tuple[KvDtype, ...], Field(min_length=1)] = ("auto",)
    """Number formats of the KV cache to judge; ``auto`` is the checkpoint's own."""

    nodes: Literal["any", "all"] = "any"
    """Splits to judge: ``any`` number of devices, or only those that use ``all``."""

    hardware: Annotated[tuple[HardwareRequest, ...], Field(max_length=64)] = ()
    """Other clusters, judged side by side with the request's."""

    loads: Annotated[tuple[Positive, ...], Field(max_length=256)] = ()
    """Other loads besides the workload's, in the unit of its mode: requests in flight, in the batch
    or in the queue, or requests per second. Each is a row of the plan. To have the best load of
    every split searched, leave ``workload.concurrency`` out instead."""

    max_batched_tokens: Annotated[tuple[Tokens, ...], Field(max_length=64)] = ()
    """Limits on the tokens of one engine step to judge; none given: the engine's default."""

    speculative: Annotated[tuple[Speculative, ...], Field(max_length=16)] = ()
    """Drafts to judge besides the workload's own."""

    context_parallel: bool = False
    """Whether to judge splits whose ranks share a cache that each would hold whole (cp), which
    helps where there are more ranks than KV heads."""

    disaggregated: bool = False
    """Whether to judge deployments with a prefill pool: prompts are computed on devices of their
    own, any split in each pool, in as many copies as fit. Not for ``mode: static``."""

    engine_options: dict[Text, Any] = {}
    """The engine's own options by name, passed on when it is started (parsers of tools, LoRA
    adapters); what the candidate or the workload decides, and secrets, are refused. Serving
    only."""

    environment: dict[Text, str] = {}
    """Environment variables of the engine's processes, such as ``NCCL_SOCKET_IFNAME``; secrets are
    refused. Serving only."""

    supervision: Supervision = Supervision()
    """How what runs is kept running, on one machine and by the controllers of clusters; no plan
    depends on it."""

    scaling: Scaling | None = None
    """How many replicas run at which moment: what ``recipe simulate`` simulates, and what the
    bundle's autoscalers are told; no plan depends on it."""

    kv_offload: KvOffload | None = None
    """Memory and storage that hold the KV cache of past prompts when the devices have no room for
    it; left out, what is evicted from a device is computed again. What it finds depends on
    ``workload.prefix_reuse``. Serving only."""

    start: Start = Start()
    """What a new replica finds when it starts; no plan depends on it."""


class PoolRequest(_Part):
    """The prefill pool of a disaggregated deployment."""

    tp: Degree
    """Tensor-parallel ranks of one copy."""

    pp: Degree = 1
    """Pipeline stages of one copy."""

    dp: Degree = 1
    """Data-parallel ranks of one copy."""

    ep: Degree = 1
    """Ranks that share the experts: 1, or tp × dp."""

    replicas: Degree = 1
    """Copies of the pool's split."""

    @property
    def devices(self) -> int:
        """Devices of the pool."""
        return self.tp * self.pp * self.dp * self.replicas


class _Degrees(_Part):
    """What splits of both kinds have: an engine or framework, and degrees of parallelism."""

    engine: Text | None = None
    """Engine or training framework, by name; left out, that of ``options.engines``, else the
    device's preferred engine, or the first framework that can launch what is asked."""

    tp: Degree | None = None
    """Tensor parallelism: ranks over which every layer is cut."""

    pp: Degree | None = None
    """Pipeline parallelism: stages over which the layers are laid."""

    dp: Degree | None = None
    """Data parallelism: replicas of the model; in serving with ``ep`` above 1, ranks of
    data-parallel attention."""

    ep: Degree | None = None
    """Expert parallelism: ranks that share the experts of an MoE model. In serving 1 (experts are
    cut by tp) or tp × dp; in training a divisor of tp × cp × dp."""

    cp: Degree | None = None
    """Context parallelism. In serving, ranks of tp that share the cache of a KV head which each
    would hold whole; in training, ranks over which a sequence is cut."""


class ServingCandidate(_Degrees):
    """A serving split, or part of one."""

    weight_dtype: WeightDtype | None = None
    """Number format of the weights; ``auto`` is the checkpoint's own."""

    kv_dtype: KvDtype | None = None
    """Number format of the KV cache; ``auto`` is the checkpoint's own."""

    max_batched_tokens: Tokens | None = None
    """Most tokens that one engine step computes; left out, the engine's default for the device."""

    max_num_seqs: Count | None = None
    """Most requests that one replica runs at once; left out, the engine's default for the
    device."""

    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the device's memory that the engine may take, above 0 up to 1, in the engine's own
    sense of it; left out, its default."""

    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in a block of the KV cache; left out, the engine's default."""

    stream_interval: Interval | None = None
    """Tokens that the engine sends to a client together; left out, 1, or what published launches
    set on this device, where only throughput, cost, devices or energy count."""

    scheduler_recv_interval: Interval | None = None
    """Decode steps from one look for new requests to the next (SGLang); left out, as
    ``stream_interval``."""

    engine_version: Text | None = None
    """Release of the engine whose memory rules and default limits count, such as ``0.8.5``; left
    out, the one that bundles start. With a split stated in full (tp, pp, dp), in estimates only."""

    eager: bool | None = None
    """Whether the engine runs without captured graphs. This version does not model it and refuses
    ``true``."""

    speculative: Speculative | None = None
    """Speculative decoding, in place of the workload's."""

    prefill: PoolRequest | None = None
    """Prefill pool: prompts are computed there, and the degrees above are those of the pool that
    decodes. Left out, both share the devices."""

    replicas: Degree | None = None
    """Copies of the pool that decodes, only beside ``prefill``; left out there, 1. Where experts
    are not shared dp comes to the same."""


RecomputedModule = Literal[
    "core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts"
]


class TrainingCandidate(_Degrees):
    """A training split, or part of one."""

    virtual_stages: Degree | None = None
    """Chunks of layers per pipeline stage (interleaving)."""

    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: states divided over data-parallel ranks; 0 none, 1 optimizer states, 2 gradients
    too, 3 parameters too."""

    micro_batch: Count | None = None
    """Sequences that a replica computes at once."""

    recompute: Literal["none", "selective", "full"] | None = None
    """Activations made again in the backward pass: none, those of some operators (``selective``),
    or all but each layer's input (``full``)."""

    precision: Literal["bf16", "fp16", "fp8"] | None = None
    """Number format of the matrix products; left out, bf16. States are kept as the framework keeps
    them."""

    recompute_modules: tuple[RecomputedModule, ...] | None = None
    """Parts of a layer that ``selective`` makes again, in Megatron Core's words: scores of
    attention, expansions of latents, activations of experts, norms, or whole blocks; left out, what
    the framework's ``selective`` means."""

    overlap_experts: bool | None = None
    """Whether tokens travel to and from experts while another micro-batch is computed; left out,
    they do not."""

    schedule: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"] | None = None
    """Pipeline schedule; left out, ``1f1b``, or ``interleaved`` with several chunks per stage."""

    shard: Degree | None = None
    """Ranks that divide the states; fewer than dp × cp are hybrid shards (HSDP)."""

    sequence_parallel: bool | None = None
    """Whether tensor-parallel ranks also divide what norms and residuals keep; left out, they
    do."""

    recompute_layers: Degree | None = None
    """Layers of the model that are recomputed; left out, all."""

    offload: Literal["none", "optimizer", "optimizer-nvme"] | None = None
    """Where optimizer states live: on the device (``none``), in the host's memory (``optimizer``)
    or on its disks (``optimizer-nvme``); left out, on the device."""

    activation_offload: bool | None = None
    """Whether what waits for the backward pass waits in the host's memory; left out, it stays on
    the device."""

    gradient_sync: Literal["micro-batch", "step"] | None = None
    """When replicas exchange gradients: after every micro-batch or once a step; left out, after
    every micro-batch."""


class CandidateRequest(TrainingCandidate, ServingCandidate):
    """One split, or part of one: a field left out is chosen by the search.

    A field that only the other kind of workload has is refused.
    """


def needs_load(workload: Workload) -> bool:
    """Whether a workload is a closed loop that does not say how many requests are in flight."""
    if not isinstance(workload, ServingWorkload) or workload.mode != "closed":
        return False
    return workload.concurrency is None


def no_search(objective: Objective, options: Options) -> str | None:
    """What to state so that the load of a closed loop is known; None where it can be searched."""
    if all(getattr(objective.limits, name) is None for name in TIME_LIMITS):
        return (
            "State workload.concurrency, or a limit on time such as objective.limits.tpot_ms, for "
            "which the largest load is searched."
        )
    if not GAIN_FROM_LOAD & set(objective.goals):
        return (
            "State workload.concurrency: the largest load is searched only where throughput, cost "
            "or energy counts."
        )
    if options.loads:
        return (
            "State workload.concurrency, or leave options.loads out: then the largest load is "
            "searched."
        )
    return None


class PlanRequest(_Part):
    """Model, hardware, workload and objective: all that a plan, an estimate or a bundle needs."""

    model: Text | dict[str, Any]
    """Model: an id of the catalog or the hub (``owner/name``, ``owner/name@revision``), dimensions
    (``my-gpt [h=6144,L=44,heads=48,vocab=51200]``), a Hugging Face config.json itself, or a folder
    that holds one (not from strangers). A config may add its ``name``, and where its ``weights``
    are: an id of the hub, or an absolute path on the machine that runs it; left out, a launch asks
    for them."""

    hardware: HardwareRequest
    """The devices on offer, their links and their price."""

    workload: Workload
    """Requests to be served, or a run to be trained."""

    objective: Objective = Objective()
    """What counts most, and the limits that come before it."""

    options: Options = Options()
    """What the search may vary beyond the split."""

    candidate: CandidateRequest | None = None
    """The split to estimate, check or build; what it leaves out is chosen. A plan judges every
    split, whatever stands here."""

    @model_validator(mode="after")
    def _load_is_known(self) -> Self:
        if needs_load(self.workload) and (hint := no_search(self.objective, self.options)):
            raise InputError("is missing.", field="workload.concurrency", hint=hint)
        return self

    @model_validator(mode="before")
    @classmethod
    def _kind_is_serving(cls, value: Any) -> Any:
        """A workload without ``kind`` is serving."""
        workload = value.get("workload") if isinstance(value, Mapping) else None
        if isinstance(workload, Mapping) and "kind" not in workload:
            return {**value, "workload": {"kind": "serving", **workload}}
        return value

    @classmethod
    def parse(cls, value: Any) -> PlanRequest:
        """The request in ``value``, plain values read from YAML, JSON or a link.

        Raises:
            InputError: naming the first wrong field and what it takes.
        """
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise InputError(
                f"a request is an object with model, hardware and workload, not {kind}.",
                hint="See docs/request.md for an example.",
            )
        if value.get("hardware") == "any":
            raise InputError(
                "is any, where one cluster is needed.",
                field="hardware",
                hint="Size it first (recipe size), or name a device.",
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise first_error(error, value, cls) from None

    @property
    def is_training(self) -> bool:
        """Whether the workload is training rather than serving."""
        return isinstance(self.workload, TrainingWorkload)

    @property
    def load_searched(self) -> bool:
        """Whether every split is judged at its best load within the limits, not at a stated one."""
        return needs_load(self.workload)

    def to_json(self) -> dict[str, Any]:
        """Plain values with every default written out, so that a stored request keeps its meaning.

        Unset fields are left out.
        """
        out: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return out


def asks_for_any(value: Any) -> bool:
    """Whether plain values are a request whose hardware is open (``request.size``)."""
    hardware = value.get("hardware") if isinstance(value, Mapping) else None
    return hardware == "any" or (isinstance(hardware, Mapping) and "any" in hardware)


def describe_field(path: str) -> str:
    """What a field of a request means, by its dotted name: ``objective.limits.tpot_ms``.

    Raises:
        LookupError: for a name that no request has.
    """
    return description_of(PlanRequest, path)


def first_error(
    error: ValidationError, value: Mapping[str, Any], model: type[BaseModel]
) -> InputError:
    """The first problem as one sentence: field, value, what is wrong, and the fix."""
    details = error.errors(include_url=False)
    problem = next((p for p in details if p["type"] == "extra_forbidden"), details[0])
    path = [str(step) for step in problem["loc"] if step not in _NO_FIELD]
    field = ".".join(path) or None
    if problem["type"] == "missing":
        hint = "Add it; see docs/request.md for an example."
        return InputError("is missing.", field=field, hint=hint)
    if problem["type"] == "extra_forbidden":
        hint = f"Known here: {', '.join(_known(path[:-1], value, model))}."
        return InputError("is not a known field.", field=field, hint=hint)
    message = problem["msg"].removeprefix("Value error, ")
    entry = problem.get("input")
    shown = "" if isinstance(entry, Mapping | list | tuple | BaseModel) else f" (got {entry!r:.80})"
    return InputError(f"{message[0].lower() + message[1:]}{shown}.", field=field)


_NO_FIELD = (
    "serving",
    "training",
    "open hardware",
    "one cluster",
    "str",
    "constrained-str",
    "dict[any,any]",
    "dict[str,any]",
)
"""Steps of an error's place that name a choice of the schema."""


def _known(path: list[str], value: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Names of the fields that the object at ``path`` may have."""
    if not path:
        return list(model.model_fields)
    models = list(models_in(field_of(model, ".".join(path)).annotation))
    if path == ["workload"]:
        kind = value["workload"].get("kind", "serving")
        models = [m for m in models if kind in get_args(m.model_fields["kind"].annotation)]
    return [name for model in models for name in model.model_fields]


def json_schema() -> dict[str, Any]:
    """JSON Schema of a PlanRequest."""
    return TypeAdapter(PlanRequest).json_schema()
