"""Many serving splits and loads of one model on one kind of device, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.accuracy.technique import Making
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.options import COLUMNS as OPTION_COLUMNS
from recipe_core.engines.options import USUAL
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.columns import Columns, stretch_columns
from recipe_core.estimates.columns.scales import Scales
from recipe_core.estimates.rules.kv_offload import Offload
from recipe_core.estimates.rules.own_options import NONE, Effects
from recipe_core.hardware.cluster import Cluster
from recipe_core.models.spec import MATRIX_ROLES, ModelSpec, Role, Tensor
from recipe_core.models.tensors import bytes_per_value
from recipe_core.models.towers import Media


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """Shares of prompt tokens found, by the size of the cache in tokens; both rise.

    ``affinity``: whether requests that share a prefix reach the same replica.
    """

    cache_tokens: tuple[float, ...]
    hit: tuple[float, ...]
    affinity: bool = False

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]], affinity: bool = False) -> ReuseCurve:
        """The curve through points (tokens, share), in any order."""
        tokens, hits = zip(*sorted(points), strict=True)
        return cls(tuple(map(float, tokens)), tuple(map(float, hits)), affinity)

    def hit_at(self, tokens: Float) -> Float:
        """Share of prompt tokens that a cache of so many tokens finds (one per case).

        Between two points by the logarithm of the size, as working sets are spread over orders of
        magnitude; below the first in proportion to the size; above the last as there.
        """
        sizes = np.asarray(self.cache_tokens)
        inside = np.interp(np.log(np.maximum(tokens, sizes[0])), np.log(sizes), self.hit)
        return np.asarray(inside * np.clip(tokens / sizes[0], 0.0, 1.0))


def largest_batch(
    max_num_seqs: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    max_batched_tokens: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    longest_tokens: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> Int:
    """Requests of a batch whose texts may all be of the longest length, 1 at least.

    So that no batch takes more memory than ``max_batched_tokens`` do.
    """
    within = np.floor(np.asarray(max_batched_tokens) / np.maximum(longest_tokens, 1))
    return np.maximum(np.minimum(max_num_seqs, within), 1).astype(np.int64)


# Formats that an engine casts into one another while loading.
WIDE = frozenset({"bf16", "fp16", "fp32"})

Mode = Literal["closed", "open", "static", "offline"]


class Correction(Protocol):
    """Corrections by one's own runs to the cases of a setting (``corrections``)."""

    @property
    def without(self) -> str:
        """Say what a figure rests on that no run tells of."""

    def scales(self, cases: Cases) -> Scales | None:
        """Scales of the times of each case; None where no run is on the device."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts that all cases of one call share. Dtypes are resolved: never "auto".

    ``correction``: what runs of one's own teach about them; None without any run. ``media``: images
    and sound in every prompt. ``reuse``: what a prefix cache finds by its size; None where cases
    say it. ``offload``: tiers below the devices' cache; None for none. ``judged_on``: the kind of
    benchmark that accuracy is of, "mean" of all. ``assumed``: whether the number formats are taken
    as given, so that no rule on formats refuses them and their accuracy is not judged: those of
    techniques that no plan has as a format. ``compressed``: checkpoints that were made and measured
    here, of any model. ``making``: how the bundle makes the checkpoint, as far as the request
    says it; None where it makes none. ``effects``: what the user's own options of the engine do.
    ``exact``: whether all requests are as long as the mean one. ``answers``: lengths of answers
    over their mean, ascending, at even shares of requests; empty where no shape is stated.
    """

    model: ModelSpec
    cluster: Cluster
    engine: Engine
    mode: Mode
    weight_dtype: str
    kv_dtype: str
    correction: Correction | None = None
    media: tuple[Media, ...] = ()
    reuse: ReuseCurve | None = None
    offload: Offload | None = None
    judged_on: str = "mean"
    assumed: bool = False
    compressed: tuple[MeasuredCompression, ...] = ()
    making: Making | None = None
    effects: Effects = NONE
    exact: bool = False
    answers: tuple[float, ...] = ()

    def stored_dtype(self, role: Role) -> str:
        """The number format in which tensors of a role lie in device memory.

        A checkpoint's own quantisation says it for each role; one that the engine makes turns every
        matrix of the layers; embeddings, head, router and norms stay as they are.
        """
        quantization = self.model.quantization
        if quantization is not None and self.weight_dtype == quantization.dtype:
            return quantization.dtype_of(role, self.model.dtype)
        if self.weight_dtype in WIDE:
            return self.weight_dtype
        return self.weight_dtype if role in MATRIX_ROLES else self.model.dtype

    def stored_bytes(self, role: Role) -> float:
        """Bytes per stored value of a role, scales included."""
        quantization = self.model.quantization
        if quantization is not None and self.weight_dtype == quantization.dtype:
            return quantization.bytes_of(role, self.model.dtype)
        return bytes_per_value(self.stored_dtype(role))

    def tensor_bytes(self, tensor: Tensor) -> float:
        """Bytes per stored value of a tensor: its own format where it has one, else its role's."""
        quantization = self.model.quantization
        if tensor.stored and quantization and self.weight_dtype == quantization.dtype:
            return tensor.stored.bytes_each
        return self.stored_bytes(tensor.role)

    @property
    def needs_other_checkpoint(self) -> bool:
        """Return whether weights are neither in the checkpoint nor quantised while loading."""
        stored, loaded = self.model.weight_dtype, self.weight_dtype
        if loaded == stored or {loaded, stored} <= WIDE:
            return False
        return not (stored in WIDE and loaded in self.engine.online_weight_dtypes)

    @property
    def activation_dtype(self) -> str:
        """The 16- or 32-bit format that activations have."""
        return self.weight_dtype if self.weight_dtype in WIDE else self.model.dtype

    @property
    def cache_can_be_had(self) -> bool:
        """Return whether the engine has a flag for the cache format with these activations."""
        return self.assumed or self.kv_dtype in (*self.engine.free_kv_dtypes, self.activation_dtype)

    @property
    def widens(self) -> bool:
        """Return whether the engine multiplies 16-bit values in fp32 where that is faster."""
        return self.cluster.device.runtime in self.engine.widens

    @property
    def whole_prompts(self) -> bool:
        """Return whether a prompt runs in one step: no chunks, or tokens that attend ahead."""
        return self.model.is_encoder or not self.engine.chunked_prefill

    @property
    def caches(self) -> bool:
        """Return whether the engine keeps keys and values of this model in a cache."""
        return self.engine.memory.caches and not self.model.is_encoder

    @property
    def activation_bytes(self) -> float:
        """Bytes per activation value: 16 bit, or 32 where the weights are."""
        return 4.0 if self.weight_dtype == "fp32" else 2.0


def no_such_cache(setting: Setting) -> str:
    """The sentence that no flag gives this cache format with these activations, and what does."""
    dtypes = ", ".join(dict.fromkeys((setting.activation_dtype, *setting.engine.free_kv_dtypes)))
    return (
        f"{setting.engine.title} does not support {setting.kv_dtype} KV caches with "
        f"{setting.activation_dtype} activations; supported: {dtypes}"
    )


# The columns that describe one pool of devices.
POOL = ("tp", "pp", "dp", "ep", "copies")

# What tiers below the devices' cache cost a request; 0 where there are none.
KV_TIMES = ("kv_wait_s", "kv_step_s")
OPTIONAL = (
    "draft_tokens",
    "acceptance",
    "draft_layers",
    *(f"prefill_{name}" for name in POOL),
    *KV_TIMES,
    "window_s",
    "length_spread",
    "input_variance",
    "output_variance",
    "told_context",
)
SINGLE = ("copies", "cp", "instances")


@dataclass(frozen=True, slots=True)
class Cases(Columns):
    """One row a case; all columns have the same length.

    tp, pp, dp, ep: degrees; cp: ranks of tp that share what each would hold of the cache of a KV
    head. per_node: devices in a node. input_tokens, output_tokens: mean lengths. max_context:
    longest request of the load; told_context: what the engine is told to accept beyond it. load:
    requests in flight, arrivals per second, batch or queued requests, by the mode. prefix_hit:
    share of the prompt found in the cache. Then the engine's own limits.

    draft_tokens: drafted a step, each accepted with probability acceptance when those before it
    were; draft_layers: what drafts them (0 looks them up). prefill_*: the pool that computes
    prompts (tp 0: there is none), besides which the degrees above are the pool that decodes.
    copies: how often the whole split is there, each with its own scheduler. stream_interval: tokens
    that leave the engine together; recv_interval: decode steps from one look for new requests to
    the next. window_s: how long a request waits for others to fill a batch, at most; instances:
    copies of a model on a device that take batches in turn; length_spread: half-width of the
    lengths of prompts, as a share of their mean; input_variance, output_variance: of shapes of
    lengths, over the square of their mean. kv_wait_s: what a request waits for cached blocks
    before its prompt; kv_step_s: what moving its blocks adds to the steps that it shares.
    """

    tp: Int
    pp: Int
    dp: Int
    ep: Int
    per_node: Int
    nodes: Int
    input_tokens: Float
    output_tokens: Float
    max_context: Float
    load: Float
    prefix_hit: Float
    max_batched_tokens: Float
    max_num_seqs: Float
    memory_fraction: Float
    block_tokens: Float
    draft_tokens: Float
    acceptance: Float
    draft_layers: Float
    copies: Int
    cp: Int
    prefill_tp: Int
    prefill_pp: Int
    prefill_dp: Int
    prefill_ep: Int
    prefill_copies: Int
    stream_interval: Float
    recv_interval: Float
    kv_wait_s: Float
    kv_step_s: Float
    window_s: Float
    length_spread: Float
    input_variance: Float
    output_variance: Float
    instances: Int
    told_context: Float

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def devices(self) -> Int:
        """Devices a case uses, those of a prefill pool included."""
        return self.tp * self.pp * self.dp * self.copies + self.prefill_devices

    @property
    def prefill_devices(self) -> Int:
        """Devices of the prefill pool."""
        return self.prefill_tp * self.prefill_pp * self.prefill_dp * self.prefill_copies

    @property
    def replicas(self) -> Int:
        """Independent schedulers: replicas, or data-parallel attention ranks (shared experts)."""
        return self.dp * self.copies

    @property
    def disaggregated(self) -> Bool:
        """Mark where prompts are computed by a pool of their own."""
        return self.prefill_tp > 0

    @property
    def prefill_pool(self) -> Cases:
        """The prefill pool of each case as cases of their own."""
        pool: dict[str, Any] = {name: getattr(self, f"prefill_{name}") for name in POOL}
        none: dict[str, Any] = {f"prefill_{name}": np.zeros_like(self.tp) for name in POOL}
        return replace(self, **pool, **none)

    @property
    def accepted_tokens(self) -> Float:
        """Tokens of the longest request that the engine accepts, and has to hold."""
        return np.maximum(self.told_context, self.max_context)

    @property
    def held_tokens(self) -> Float:
        """Tokens of an answer that a running request holds on average.

        Long answers run longer: E[L²]/(2·E[L]), half of the mean where lengths do not vary.
        """
        return self.output_tokens / 2 * (1 + self.output_variance)

    @property
    def shares_experts(self) -> Bool:
        """Mark where experts are spread over ranks instead of being cut by tensor parallelism."""
        return self.ep > 1


def cases(n: int, **columns: Any) -> Cases:
    """Cases from scalars and arrays, every column stretched to ``n`` rows and given its type.

    Left out, ``copies`` and ``cp`` are 1, options of the engine as usual, and what concerns drafts
    and the prefill pool 0: there are none.
    """
    usual = {OPTION_COLUMNS[name]: number for name, number in USUAL.items()}
    usual = {**dict.fromkeys(OPTIONAL, 0), **dict.fromkeys(SINGLE, 1), **usual}
    return stretch_columns(Cases, n, usual | columns)
