"""Rows of a model's tensor table: what a weight is, how it is quantised and cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core.models.dtypes import bytes_per_value

# What a tensor is to a quantisation.
#
# ``attention``: projections of softmax attention. ``mixer``: projections of linear-attention and
# state-space layers. ``linear``: dense feed-forward. ``experts``: routed experts. ``shared``:
# shared experts and dense blocks beside experts. ``unquantized``: a matrix that this checkpoint
# leaves in the base dtype although others of its kind are quantised. ``router`` and ``norm`` always
# stay in the base dtype.
Role = Literal[
    "linear",
    "experts",
    "embedding",
    "head",
    "router",
    "norm",
    "attention",
    "mixer",
    "shared",
    "unquantized",
]

# What quantising "the weights" covers by default: every matrix of the layers.
MATRIX_ROLES: frozenset[Role] = frozenset({"attention", "mixer", "linear", "shared", "experts"})

# How a tensor is cut: over tensor-parallel ranks, by KV heads (replicated once there are more ranks
# than heads), over the ranks that share the experts, or by rows of the padded vocabulary.
Shard = Literal["replicated", "tensor", "kv_heads", "experts", "vocabulary"]


@dataclass(frozen=True, slots=True)
class Stored:
    """How quantised values are stored: a dtype, and the edge of scale blocks that cuts respect.

    ``value_bytes``: bytes per value with scales, where a group size says so (None: as usual).
    ``group``: inputs of a row that share a scale, where these are not all of it.
    """

    dtype: str
    block: int | None = None
    value_bytes: float | None = None
    group: int | None = None

    @property
    def bytes_each(self) -> float:
        """Bytes per value, scales included."""
        return bytes_per_value(self.dtype) if self.value_bytes is None else self.value_bytes

    @property
    def fingerprint(self) -> list[object]:
        return [self.dtype, self.block or 0, self.value_bytes or 0]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights from ``inputs`` to ``outputs`` values; a row of it holds the inputs of one output.

    Ranks that share it cut the outputs, or the inputs (``cuts_inputs``) where what comes in is cut
    already: attention output, feed-forward down-projection.
    """

    outputs: int
    inputs: int
    cuts_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """All weights of one kind in a layer or the model: ``numel``, of which a token uses ``active``.

    ``matrices`` it is made of, where an engine may store their rows padded. ``stored``: the format
    of a tensor that this checkpoint stores otherwise than the rest of its role (None: as the role).
    """

    name: str
    numel: int
    role: Role
    shard: Shard
    active: float
    matrices: tuple[Matrix, ...] = ()
    stored: Stored | None = None


def tensor(name: str, numel: int, role: Role, shard: Shard, active_share: float = 1.0) -> Tensor:
    """A tensor of which a token uses ``active_share``."""
    return Tensor(name, numel, role, shard, numel * active_share)


def projections(name: str, role: Role, shard: Shard, *matrices: Matrix) -> Tensor:
    """A tensor made of matrices that every token uses."""
    numel = sum(matrix.outputs * matrix.inputs for matrix in matrices)
    return Tensor(name, numel, role, shard, numel, matrices)


# Labels of the parts of a model.
PART_TITLES = {
    "attention.q": "Query",
    "attention.q_a": "Query, down",
    "attention.q_b": "Query, up",
    "attention.kv": "Key and value",
    "attention.kv_a": "Key and value, down",
    "attention.kv_b": "Key and value, up",
    "attention.o": "Attention output",
    "attention.bias": "Attention biases",
    "mlp": "Feed-forward",
    "moe.experts": "Experts",
    "moe.shared": "Shared experts",
    "moe.bias": "Expert biases",
    "moe.router": "Router",
    "embedding": "Embedding",
    "head": "Language-model head",
    "norm": "Norms",
    "image_experts": "Experts of image tokens",
    "vision encoder": "Vision encoder",
    "audio encoder": "Audio encoder",
}
