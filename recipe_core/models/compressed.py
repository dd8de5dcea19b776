"""Attention over a compressed past (DeepSeek-V4, arXiv:2606.19348)."""

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
            made = Matrix(per_token + self.index_heads, hidden)
            out.append(projections("attention.compressor", "unquantized", "replicated", made))
        if self.index_heads:
            keys = self.index_heads * self.index_head_dim
            out.append(attention_matrix("indexer", "replicated", keys, self.q_lora_rank))
        return out

    def _small(self) -> int:
        """Norms, a sink a head, and for each place in an entry how its values are weighted."""
        entry = self.head_dim + self.index_head_dim
        norms = self.q_lora_rank + self.head_dim + (entry if self.ratio else 0)
        return norms + self.heads + self.ratio * self.series * entry
