"""A training run: what is trained, on how much, in which steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError
from recipe_core.base.types import Count, Positive, Text, Tokens
from recipe_core.request.phases import Evaluation, Phases
from recipe_core.request.rollout import REINFORCED, NodeFile, Rollout


class Loading(DescribedModel):
    """The loading of training data."""

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


# Attention kernels by name; ``flash`` is the framework's own choice among the fused ones.
Attention = Literal["flash", "flash2", "flash3", "cudnn", "eager"]


class TrainingWorkload(DescribedModel):
    """A training run: what is trained, on how much, in which steps."""

    kind: Literal["training"]
    """Kind of workload: ``serving``, also where it is left out, or ``training``."""

    method: Literal["pretrain", "finetune", "lora", "qlora", "dpo", "grpo", "ppo"] = "pretrain"
    """What is trained: all weights (``pretrain``, ``finetune``), adapters on a frozen model
    (``lora``; ``qlora`` keeps the model in 4 bits), all weights against a frozen copy of the
    model (``dpo``, where both answers of a pair count in the batch), or all weights by rewards of
    the model's own answers (``grpo``, and ``ppo`` with a critic; both need ``rollout``)."""

    adapters: Literal["lora"] | None = None
    """What ``grpo`` and ``ppo`` train: adapters on a frozen model (``lora``, of ``lora_rank``,
    ``lora_alpha`` and ``lora_targets``), whose engine is sent adapters only and whose reference is
    the model without them; left out, all weights. Only there: ``method`` says it otherwise."""

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
    a layout has to run in each. Left out, the whole run is alike."""

    evaluation: Evaluation | None = None
    """Evaluations on held-out tokens during the run; left out, none."""

    data_format: Literal["text", "chat", "preference"] | None = None
    """What the data holds: running ``text``, conversations of which only the answers are learnt
    (``chat``), or prompts with a better and a worse answer (``preference``, of ``dpo``). Left out,
    what the framework's launch trains on."""

    data: NodeFile | None = None
    """File on the nodes that the run learns from, by its absolute path: rows of JSON as those of
    ``data/`` in the bundle, chats, preferences or tasks with their answers. Left out, a small
    sample that the bundle brings, to try it with."""

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
    bits, without a copy in fp32 (8 bytes a parameter with AdamW, 6 with SGD; 8-bit states, those of
    Lion and of paged AdamW and Adafactor's sums stay as they are); left out, or ``fp32``, they are
    mixed as the framework keeps them."""

    moment_dtype: Literal["fp32", "bf16", "fp8"] | None = None
    """Number format of AdamW's moments, beside weights and gradients that stay as they are
    (Megatron's ``--exp-avg-dtype``); left out, that of the other states."""

    activation_dtype: Literal["bf16", "fp8"] | None = None
    """Number format in which the inputs of feed-forward activations wait for the backward pass,
    which casts ``fp8`` back; left out, bf16."""

    mtp_layers: Annotated[int, Field(ge=0, le=8)] = 0
    """Layers that learn to predict tokens further ahead (multi-token prediction), trained beside
    the model on its last stage, each with a loss of its own; left out, none."""

    optimizer: Literal[
        "adamw",
        "adamw-8bit",
        "paged-adamw",
        "paged-adamw-8bit",
        "adafactor",
        "lion",
        "muon",
        "sgd",
    ] = "adamw"
    """Optimizer; it decides the bytes of state per trained parameter, and what an update moves.
    ``paged`` ones keep their states where the driver moves them to the host's memory while a device
    is full; they are counted as on the device."""

    attention: Attention = "flash"
    """Attention kernel: ``eager`` keeps the scores in memory, fused ones do not. ``flash`` is the
    fused kernel that the framework takes on the device; ``flash2`` and ``flash3`` are
    FlashAttention-2 and 3 (Hopper only), ``cudnn`` is cuDNN's."""

    fused_loss: bool | None = None
    """Whether logits are made piece by piece, so that they are never whole in memory (in Axolotl
    and LLaMA-Factory by Liger's kernel); left out, only where they do not fit otherwise and the
    framework can."""

    lora_rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Rank of the adapters of ``lora``, ``qlora`` and ``adapters``."""

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
    """Time between checkpoints, in seconds; left out, the interval that loses least (Young), at
    most half a day, and at least two in ``time_limit_s``."""

    time_limit_s: Positive | None = None
    """Longest time that one start of the run may take, in seconds, after which it goes on from its
    newest checkpoint: a scheduler's time limit, ``maxRunDuration``, the life of a machine, the time
    between maintenance windows. Left out, ``time_limit_minutes`` of the deployment settings, else
    no limit is counted."""

    kept_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Checkpoints that stay on storage."""

    loading: Loading | None = None
    """How data reaches the devices; left out, as its fields say."""

    @property
    def step_tokens(self) -> float:
        """Tokens that a step counts in the budget: all answers at their mean, no padding."""
        if self.rollout is not None:
            return float(self.rollout.sequences * self.rollout.mean_tokens)
        return self.global_batch * self._useful_tokens(self.sequence_length)

    @property
    def steps(self) -> int | None:
        """Steps of the whole run, as an estimate, a launch and a page count them; None without end.

        With a ``rollout`` a step samples all its answers and trains on them.
        """
        if self.tokens is None:
            return None
        if self.phases is None:
            return math.ceil(self.tokens / self.step_tokens)
        return sum(
            math.ceil(
                phase.tokens
                / (phase.global_batch or self.global_batch)
                / self._useful_tokens(phase.sequence_length or self.sequence_length)
            )
            for phase in self.phases
        )

    def _useful_tokens(self, sequence_length: int) -> float:
        """Tokens of a sequence that are not padding."""
        short = self.document_tokens is not None and not self.packed
        return min(self.document_tokens or 0, sequence_length) if short else sequence_length

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
        return {**sampled.step_sizes, **value}

    @model_validator(mode="after")
    def _rollout_fits_method(self) -> Self:
        if self.method not in REINFORCED:
            if self.adapters is not None:
                raise ValueError(
                    f"adapters goes with method grpo and ppo, not {self.method}; leave adapters "
                    "out, or use method lora"
                )
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
        unfit_fields = [
            name for name, value in {**alike, "evaluation": self.evaluation}.items() if value
        ]
        if unfit_fields:
            raise ValueError(
                f"method {self.method} trains on the lengths of rollout; leave "
                f"{' and '.join(unfit_fields)} out"
            )
        return self
