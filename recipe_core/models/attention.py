"""Token mixers of a layer: attention over a cache, or a recurrent state of fixed size.

All classes answer the same questions: heads and their widths, cached values per token
(``kv_values_per_head``), values kept per sequence (``state_values``), and their tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.models.tensors import Matrix, Mixer, Tensor, attention_matrix, projections, tensor

# Values of an fp8 entry that share one scale byte; one byte more pads the scales (vLLM's
# ``fp8_ds_mla`` layout of this model).
SCALED_VALUES = 64

# The states of unfinished entries are kept in fp32 (vLLM: ``models/deepseek_v4/compressor.py``).
STATE_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class CompressedAttention(Mixer):
    """One layer with a window of single tokens and entries that stand for many.

    Key and value are one vector of ``head_dim`` that all heads share, so every tensor-parallel rank
    holds all of it.

    A token attends to the last ``local`` tokens one by one and, where ``ratio`` > 0, to entries
    made of ``ratio`` tokens each: all of them (heavily compressed), or with an indexer
    (``index_heads`` > 0) the ``attends`` highest-scoring ones (compressed sparse). Entries to
    choose from are made of two series of values, so that neighbours overlap; the indexer has
    smaller entries of its own. Queries come from a latent, the output goes through ``o_groups``
    products of their own into one shared product.
    """

    heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    local: int
    ratio: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    attends: int | None = None

    @property
    def kv_heads(self) -> int:
        """All heads share one key: one "KV head", never divided."""
        return 1

    @property
    def v_head_dim(self) -> int:
        return self.head_dim

    @property
    def window(self) -> int | None:
        """Tokens that the layer keeps, where its window is all it has; else None."""
        return None if self.ratio else self.local

    @property
    def kv_values_per_head(self) -> int:
        """Values of a cached token or entry: key and value in one."""
        return self.head_dim

    @property
    def series(self) -> int:
        """Vectors that a token contributes: to its entry, and to the next if entries overlap."""
        return 2 if self.index_heads else 1

    @property
    def state_tokens(self) -> int:
        return self.series * self.ratio

    @property
    def state_values_per_token(self) -> int:
        """Values that such a token leaves for its entry: summands and weights, for each series."""
        return 2 * self.series * self.head_dim

    @property
    def index_state_values_per_token(self) -> int:
        return 2 * self.series * self.index_head_dim

    @property
    def state_values(self) -> int:
        """Values kept per sequence for unfinished entries, in fp32; on every rank alike."""
        return self.state_tokens * (self.state_values_per_token + self.index_state_values_per_token)

    @property
    def state_bytes_per_value(self) -> float | None:
        return float(STATE_VALUE_BYTES)

    @property
    def index_entry_bytes(self) -> float:
        """Bytes of the indexer's key of an entry: always fp8, one fp32 scale per 128 values."""
        return self.index_head_dim * (1 + 4 / 128)

    def entry_bytes(self, value_bytes: float) -> float:
        """Bytes of a cached token or entry at ``value_bytes`` per value.

        The rotary part stays in 16 bits; one-byte values have scales.
        """
        if value_bytes >= 2:
            return self.head_dim * value_bytes
        plain = self.head_dim - self.rope_head_dim
        return plain * value_bytes + 2 * self.rope_head_dim + -(-plain // SCALED_VALUES) + 1

    def token_bytes(self, value_bytes: float) -> float:
        """Bytes that a token adds to the cache: its share of an entry and of the indexer's.

        A layer with only a window caches the token itself.
        """
        if not self.ratio:
            return self.entry_bytes(value_bytes)
        return (self.entry_bytes(value_bytes) + self.index_entry_bytes) / self.ratio

    def sequence_bytes(self, value_bytes: float) -> float:
        """Bytes per sequence of constant size: the window, and the states of unfinished entries."""
        if not self.ratio:
            return 0.0
        return self.local * self.entry_bytes(value_bytes) + self.state_values * STATE_VALUE_BYTES

    def tensors(self, hidden: int) -> list[Tensor]:
        """Projections of one layer; parts with heads or output groups are cut, others replicated.

        What makes entries and weighs index heads stays in 16 bit in quantised checkpoints.
        """
        width = self.heads * self.head_dim
        grouped = self.o_groups * self.o_lora_rank
        out = [
            attention_matrix("q_a", "replicated", self.q_lora_rank, hidden),
            attention_matrix("q_b", "tensor", width, self.q_lora_rank),
            attention_matrix("kv_a", "replicated", self.head_dim, hidden),
            attention_matrix("o_a", "tensor", grouped, width // self.o_groups),
            attention_matrix("o_b", "tensor", hidden, grouped),
            tensor("attention.small", self._small(), "norm", "replicated"),
        ]
        if self.ratio:
            per_token = self.state_values_per_token + self.index_state_values_per_token
            entries = Matrix(per_token + self.index_heads, hidden)
            out.append(projections("attention.compressor", "unquantized", "replicated", entries))
        if self.index_heads:
            keys = self.index_heads * self.index_head_dim
            out.append(attention_matrix("indexer", "replicated", keys, self.q_lora_rank))
        return out

    def _small(self) -> int:
        """Norms, a sink a head, and for each place in an entry how its values are weighted."""
        entry = self.head_dim + self.index_head_dim
        norms = self.q_lora_rank + self.head_dim + (entry if self.ratio else 0)
        return norms + self.heads + self.ratio * self.series * entry


@dataclass(frozen=True, slots=True)
class GroupedAttention(Mixer):
    """Multi-head, grouped-query or multi-query attention.

    ``window`` bounds what a token sees (None: all).

    ``gate`` is the width of an output gate computed beside the queries (0: none). ``shared_kv``
    layers project keys only and use them as values too (both are cached). ``borrows_cache`` layers
    attend over an earlier layer's cache: no K/V projection, no cache of their own. ``index_dim``:
    width of a key beside the cache of a token that says which blocks a query attends to (0: none).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    bias: bool = False
    gate: int = 0
    shared_kv: bool = False
    borrows_cache: bool = False
    index_dim: int = 0

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes per token of the index key, in 16 bits on every rank (sglang#36549)."""
        return 2.0 * self.index_dim

    @property
    def bidirectional(self) -> bool:
        return False

    @property
    def projected_per_head(self) -> int:
        """Values that a token's key and value have per KV head."""
        return 0 if self.borrows_cache else self.head_dim + self.v_head_dim

    @property
    def kv_values_per_head(self) -> int:
        """Cached values per token and KV head: key and value."""
        return self.projected_per_head

    def tensors(self, hidden: int) -> list[Tensor]:
        """Projections of one layer; K and V are cut by KV heads."""
        width = self.head_dim if self.shared_kv else self.head_dim + self.v_head_dim
        kv = 0 if self.borrows_cache else self.kv_heads * width
        out = [
            attention_matrix("q", "tensor", self.heads * self.head_dim + self.gate, hidden),
            attention_matrix("kv", "kv_heads", kv, hidden),
            attention_matrix("o", "tensor", hidden, self.heads * self.v_head_dim),
        ]
        if self.bias:
            out.append(tensor("attention.bias", self.heads * self.head_dim + kv, "norm", "tensor"))
        return [item for item in out if item.numel]


@dataclass(frozen=True, slots=True)
class EncoderAttention(GroupedAttention):
    """Attention of an encoder: every token attends to all of its text, so nothing is cached.

    ``window`` is the width of what a token sees, half of it on either side.
    """

    @property
    def bidirectional(self) -> bool:
        return True

    @property
    def kv_values_per_head(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434).

    One latent per token serves all heads.

    The cached latent (``kv_lora_rank + rope_head_dim`` values) has no heads, so every
    tensor-parallel rank holds all of it. ``attends`` bounds how many tokens of its past a token
    attends to, the highest-scoring ones (DeepSeek Sparse Attention; None: all). With
    ``index_heads`` > 0 the layer has the indexer that chooses them and caches one more key per
    token, else it takes an earlier layer's choice.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    window: int | None = None
    index_heads: int = 0
    index_head_dim: int = 0
    attends: int | None = None

    @property
    def kv_heads(self) -> int:
        """The latent is shared by all heads: one "KV head", never divided."""
        return 1

    @property
    def head_dim(self) -> int:
        return self.nope_head_dim + self.rope_head_dim

    @property
    def kv_values_per_head(self) -> int:
        """Cached values per token: the latent and the rotary key."""
        return self.kv_lora_rank + self.rope_head_dim

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes per token of the indexer: an fp8 key, an fp32 scale per 128 values (vLLM)."""
        return self.index_head_dim * (1 + 4 / 128) if self.index_heads else 0.0

    def tensors(self, hidden: int) -> list[Tensor]:
        """Projections of one layer: down-projections replicated, up-projections cut by heads."""
        q, up = self.heads * self.head_dim, self.heads * (self.nope_head_dim + self.v_head_dim)
        out = [
            attention_matrix("kv_a", "replicated", self.kv_lora_rank + self.rope_head_dim, hidden),
            attention_matrix("kv_b", "tensor", up, self.kv_lora_rank),
            attention_matrix("o", "tensor", hidden, self.heads * self.v_head_dim),
        ]
        if self.index_heads:
            out.append(
                tensor("attention.indexer", self._indexer(hidden), "attention", "replicated")
            )
        if self.q_lora_rank is None:
            return [*out, attention_matrix("q", "tensor", q, hidden)]
        return [
            *out,
            attention_matrix("q_a", "replicated", self.q_lora_rank, hidden),
            attention_matrix("q_b", "tensor", q, self.q_lora_rank),
        ]

    def _indexer(self, hidden: int) -> int:
        """Queries from the query latent, one key, a weight per head (``deepseek_v32`` indexer)."""
        queries = (self.q_lora_rank or hidden) * self.index_heads * self.index_head_dim
        return queries + hidden * (self.index_head_dim + self.index_heads)


@dataclass(frozen=True, slots=True)
class LinearAttention(Mixer):
    """A layer with a state of fixed size per sequence.

    Gated delta net, Kimi delta, Mamba-1/2, lightning attention or short convolution.

    ``heads`` value heads of ``v_head_dim`` and ``kv_heads`` key heads (or groups) of ``head_dim``
    (the state size of Mamba); the recurrent state is ``heads · head_dim · v_head_dim`` values.
    ``conv_channels`` of a causal convolution of ``conv_kernel`` keep their last ``conv_kernel - 1``
    inputs. ``in_columns`` is the width of all input projections, ``extra`` what else the layer
    holds.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    conv_kernel: int
    conv_channels: int
    in_columns: int
    extra: int = 0
    recurrent_bytes: float | None = None
    """Bytes per value of the recurrent state where the config states its dtype; the convolution
    keeps the activation dtype."""

    @property
    def window(self) -> int | None:
        return None

    @property
    def kv_values_per_head(self) -> int:
        """Nothing is cached per token."""
        return 0

    @property
    def conv_state_values(self) -> int:
        """Values of the convolution's state per sequence."""
        return self.conv_channels * max(0, self.conv_kernel - 1)

    @property
    def recurrent_state_values(self) -> int:
        """Values of the recurrent state per sequence."""
        return self.heads * self.head_dim * self.v_head_dim

    @property
    def state_values(self) -> int:
        """Values kept per sequence by the whole layer; cut over heads."""
        return self.conv_state_values + self.recurrent_state_values

    @property
    def state_bytes_per_value(self) -> float | None:
        """Mean bytes per state value (None: the activation dtype); the convolution is 16-bit."""
        if self.recurrent_bytes is None or not self.state_values:
            return None
        recurrent = self.recurrent_bytes * self.recurrent_state_values
        return (2 * self.conv_state_values + recurrent) / self.state_values

    def tensors(self, hidden: int) -> list[Tensor]:
        """Input and output projections, and the convolution with other small tensors."""
        small = self.conv_channels * self.conv_kernel + self.extra
        return [
            projections("mixer.in", "mixer", "tensor", Matrix(self.in_columns, hidden)),
            projections(
                "mixer.out",
                "mixer",
                "tensor",
                Matrix(hidden, self.heads * self.v_head_dim, cuts_inputs=True),
            ),
            tensor("mixer.small", small, "norm", "tensor"),
        ]


Attention = GroupedAttention | LatentAttention | CompressedAttention | LinearAttention
