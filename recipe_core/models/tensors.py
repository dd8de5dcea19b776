"""Rows of a model's tensor table: what a weight is, how it is quantised and cut."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from recipe_core.base.errors import look_up

BYTES_PER_VALUE: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0 + 4.0 / 128**2,  # one fp32 scale a 128 × 128 block
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,  # groups of 128: a 16-bit scale and a 4-bit zero point
    "int3": 0.375 + 4.0 / 32,  # of caches: groups of 32 with two 16-bit numbers (KIVI)
    "int2": 0.25 + 4.0 / 32,
    "mxfp4": 0.5 + 1.0 / 32,  # OCP MX: an 8-bit scale for 32 values
    "nvfp4": 0.5 + 1.0 / 16,  # an fp8 scale for 16 values
}

_COMPUTE = {"fp8-block": "fp8", "int4": "bf16"}
_HALF = ("bf16", "fp16", "fp32")


def bytes_per_value(dtype: str, *, field: str | None = None) -> float:
    """Stored bytes per value, scales included; raises InputError for an unknown format."""
    return look_up("number format", dtype, BYTES_PER_VALUE, field)


def compute_dtype(dtype: str, native: Collection[str]) -> str:
    """The format in which a product with weights in ``dtype`` runs, given the ``native`` ones.

    Weight-only formats (int4 always; fp8, fp4, int8 where the device has no such units) are widened
    to 16 bit first, as Marlin-like kernels do; one 4-bit float format stands in for the other.
    """
    compute = _COMPUTE.get(dtype, dtype)
    if compute in native:
        return compute
    if compute in ("mxfp4", "nvfp4"):
        stand_in = "nvfp4" if compute == "mxfp4" else "mxfp4"
        if stand_in in native:
            return stand_in
    return next(half for half in _HALF if half in native)


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
    """The storage of quantised values: a dtype, and the edge of scale blocks that cuts respect.

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


# Products whose inputs come in cut: of attention's output, by heads or groups.
_CUT_INPUTS = ("o", "o_b")


def attention_matrix(name: str, shard: Shard, outputs: int, inputs: int) -> Tensor:
    """A projection of attention: ``attention.NAME``."""
    matrix = Matrix(outputs, inputs, cuts_inputs=name in _CUT_INPUTS)
    return projections(f"attention.{name}", "attention", shard, matrix)


class Mixer:
    """A token mixer, which keeps no state per sequence unless its kind says so."""

    __slots__ = ()

    @property
    def state_values(self) -> int:
        """Values kept per sequence by the whole layer."""
        return 0

    @property
    def state_bytes_per_value(self) -> float | None:
        """Mean bytes per state value; None: the activation dtype."""
        return None


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


@dataclass(frozen=True, slots=True)
class Quantization:
    """The storage of a quantised checkpoint.

    ``dtype`` for the tensors of ``roles``, the base dtype for the rest.

    ``block`` is the edge of square scale blocks (fp8 128 × 128) that a cut must respect, None when
    there is none. ``value_bytes`` is what a weight costs with its scales where the config's group
    size says so (None: what ``dtype`` costs usually). ``mixed``: the format of those of ``roles``
    that are stored otherwise than ``dtype`` (mixed precision), each with its own block. ``scheme``
    is who wrote the checkpoint and what one scale covers ("fp8/tensor",
    "compressed-tensors/channel"): engines load the same format differently by it. ``by_name``:
    whether all this is read from the checkpoint's name, not from its config. ``group``: inputs of a
    row that share a scale, where these are not all of it.
    """

    dtype: str
    roles: frozenset[Role]
    block: int | None = None
    value_bytes: float | None = None
    mixed: tuple[tuple[Role, Stored], ...] = ()
    scheme: str = ""
    by_name: bool = False
    group: int | None = None

    @property
    def others(self) -> tuple[tuple[Role, str], ...]:
        """The dtypes of ``mixed``."""
        return tuple((role, stored.dtype) for role, stored in self.mixed)

    def stored(self, role: Role) -> Stored | None:
        """The format of a role; None for one that is not quantised."""
        if role not in self.roles:
            return None
        default_format = Stored(self.dtype, self.block, self.value_bytes, self.group)
        return dict(self.mixed).get(role, default_format)

    def dtype_of(self, role: Role, base: str) -> str:
        """The stored format of a role; ``base`` for what is not quantised."""
        stored = self.stored(role)
        return stored.dtype if stored else base

    def bytes_of(self, role: Role, base: str) -> float:
        """Stored bytes per value of a role, scales included."""
        stored = self.stored(role)
        return stored.bytes_each if stored else bytes_per_value(base)

    @property
    def fingerprint(self) -> list[object]:
        return [
            self.dtype,
            sorted(self.roles),
            self.block,
            self.value_bytes,
            sorted((role, *stored.fingerprint) for role, stored in self.mixed),
            self.scheme,
            *(["by name"] if self.by_name else []),
        ]
