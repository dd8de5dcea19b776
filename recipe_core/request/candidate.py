"""One split, or part of one, of serving and of training."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Count, Degree, KvDtype, Text, Tokens, WeightDtype
from recipe_core.request.serving_workload import Speculative

Interval = Annotated[int, Field(ge=1, le=1000)]
Window = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class PoolRequest(DescribedModel):
    """The prefill pool of a disaggregated deployment."""

    tp: Degree
    """Tensor-parallel ranks of one copy."""

    pp: Degree = 1
    """Pipeline stages of one copy."""

    dp: Degree = 1
    """Data-parallel ranks of one copy."""

    ep: Degree = 1
    """Ranks that share the experts: 1, or TP × DP."""

    replicas: Degree = 1
    """Copies of the pool's layout."""

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.replicas


class _Degrees(DescribedModel):
    """The fields of layouts of both kinds: an engine or framework, and degrees of parallelism."""

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
    cut by TP) or TP × DP; in training a divisor of TP × CP × DP."""

    cp: Degree | None = None
    """Context parallelism. In serving, ranks of TP that share the cache of a KV head which each
    would hold whole; in training, ranks over which a sequence is cut."""


class ServingCandidate(_Degrees):
    """A serving layout, or part of one."""

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

    batch_window_ms: Window | None = None
    """How long a request waits for others at most before its batch begins, in milliseconds, while
    the device is free (Triton's ``max_queue_delay_microseconds``); left out, the engine's default.
    Only for engines that form batches by a window."""

    instances: Annotated[int, Field(ge=1, le=64)] | None = None
    """Copies of the model on each device that take batches in turn (Triton's ``instance_group``);
    left out, 1. Only for engines that form batches by a window."""

    engine_version: Text | None = None
    """Release of the engine whose memory rules and default limits count, such as ``0.8.5``; left
    out, the one that bundles start. With a whole layout stated (TP, PP, DP), in estimates only."""

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
    are not shared DP comes to the same."""


Recompute = Literal["none", "selective", "full"]
CudaGraphs = Literal["none", "attention", "layer", "iteration"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
RecomputedModule = Literal[
    "core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts"
]


class TrainingCandidate(_Degrees):
    """A training layout, or part of one."""

    virtual_stages: Degree | None = None
    """Chunks of layers per pipeline stage (interleaving)."""

    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: states divided over data-parallel ranks; 0 none, 1 optimizer states, 2 gradients
    too, 3 parameters too."""

    micro_batch: Count | None = None
    """Sequences that a replica computes at once."""

    recompute: Recompute | None = None
    """Activations made again in the backward pass: none, those of some operators (``selective``),
    or all but each layer's input (``full``)."""

    precision: Literal["bf16", "fp16", "fp8"] | None = None
    """Number format of the matrix products; left out, bf16. States are kept as the framework keeps
    them."""

    recompute_modules: tuple[RecomputedModule, ...] | None = None
    """Parts of a layer that ``selective`` makes again, in Megatron Core's words: scores of
    attention, expansions of latents, activations of experts, norms, or whole blocks; they imply
    ``selective``. Left out, what the framework's ``selective`` means."""

    fp8_recipe: Fp8Recipe | None = None
    """How products in 8 bits are scaled, beside precision ``fp8``, in Megatron Core's words: one
    scale for a tensor from earlier steps (``delayed``) or from its own values (``tensorwise``), one
    for a block of 128 (``blockwise``), one for 32 values (``mxfp8``, on Blackwell and later). Left
    out, the framework's own."""

    cuda_graphs: CudaGraphs | None = None
    """What is captured as CUDA graphs, which need no launches from the host: ``attention`` halves
    of layers, each ``layer``, or a whole ``iteration``; left out, nothing. Layers with experts are
    not captured, as their sizes change from step to step."""

    compile: bool | None = None
    """Whether torch compiles the model; left out, as the framework does by itself: torchtitan
    compiles, the others do not."""

    overlap_experts: bool | None = None
    """Whether tokens travel to and from experts while another micro-batch is computed; left out,
    they do not."""

    schedule: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"] | None = None
    """Pipeline schedule; left out, ``1f1b``, or ``interleaved`` with several chunks per stage."""

    shard: Degree | None = None
    """Ranks that divide the states; fewer than DP × CP are hybrid shards (HSDP)."""

    sequence_parallel: bool | None = None
    """Whether tensor-parallel ranks also divide what norms and residuals keep; left out, they
    do."""

    recompute_layers: Degree | None = None
    """Layers of the model that are recomputed, by ``selective`` or ``full``; left out, all."""

    offload: Literal["none", "optimizer", "optimizer-nvme", "parameters"] | None = None
    """Where states live: all on the device (``none``), optimizer states in the host's memory
    (``optimizer``) or on its disks (``optimizer-nvme``), or parameters, gradients and optimizer
    states in the host's memory (``parameters``, under ZeRO-3, which copies each layer to the
    devices when it is computed); left out, on the device, or ``parameters`` where nothing fits
    otherwise."""

    activation_offload: bool | None = None
    """Whether what waits for the backward pass waits in the host's memory; left out, it stays on
    the device, with Unsloth only where layers are not recomputed."""

    gradient_sync: Literal["micro-batch", "step"] | None = None
    """When replicas exchange gradients: after every micro-batch or once a step; left out, after
    every micro-batch."""

    @property
    def recomputing(self) -> tuple[Recompute, ...]:
        """Return what may be recomputed, simplest first: as stated, else by the other fields."""
        if self.recompute is not None:
            return (self.recompute,)
        if self.recompute_modules:
            return ("selective",)
        return ("selective", "full") if self.recompute_layers else ("none", "selective", "full")

    @model_validator(mode="after")
    def _recipe_is_of_8_bits(self) -> Self:
        if self.fp8_recipe and self.precision != "fp8":
            raise ValueError("fp8_recipe goes with precision fp8; state it, or leave it out")
        return self

    @model_validator(mode="after")
    def _something_is_recomputed(self) -> Self:
        for name, kinds in (
            ("recompute_modules", ("selective",)),
            ("recompute_layers", ("selective", "full")),
        ):
            if getattr(self, name) and self.recompute not in (None, *kinds):
                raise ValueError(
                    f"{name} goes with recompute {' or '.join(kinds)}, not {self.recompute}"
                )
        return self


class CandidateRequest(TrainingCandidate, ServingCandidate):
    """One layout, or part of one: a field left out is chosen by the search.

    A field that only the other kind of workload has is refused.
    """
