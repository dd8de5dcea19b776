"""Number formats of quantised checkpoints: what each quantiser's own vocabulary means in ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product

from recipe_core.base.errors import ModelError
from recipe_core.models.config.fields import MAX_WIDTH, Reader
from recipe_core.models.tensors import Stored

MAX_PATTERNS, MAX_LENGTH, MAX_ALTERNATIVES = 200_000, 300, 64

_ATTENTION = ("self_attn", "attention", "attn", "mixer")
_MIXERS = ("linear_attn", "mixer", "mamba", "self_attn")
_HEADS = ("lm_head", "head", "*lm_head", "*lm_head*", "language_model.lm_head", "output")
_EXPERT_HOMES = ("mlp", "block_sparse_moe", "feed_forward", "mixer", "moe", "ffn")

# Vision towers and draft layers, which are not counted.
_OTHER_PARTS = ("visual", "vision", "*vision", "*visual", "mtp", "*mtp", "mm_", "multi_modal")


def _module_paths(homes: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{home}.{module}" for home in homes for module in modules)


# How each tensor's modules are called in checkpoints, after the layer's own prefix.
MODULES: dict[str, tuple[str, ...]] = {
    "attention.q": _module_paths(_ATTENTION, ("q_proj", "qkv_proj")),
    "attention.kv": _module_paths(_ATTENTION, ("k_proj", "v_proj", "qkv_proj")),
    "attention.o": _module_paths(_ATTENTION, ("o_proj",)),
    "attention.q_a": _module_paths(_ATTENTION, ("q_a_proj", "wq_a")),
    "attention.q_b": _module_paths(_ATTENTION, ("q_b_proj", "wq_b")),
    "attention.kv_a": _module_paths(_ATTENTION, ("kv_a_proj_with_mqa", "wkv")),
    "attention.kv_b": _module_paths(_ATTENTION, ("kv_b_proj",)),
    "attention.o_a": _module_paths(_ATTENTION, ("o_a_proj", "wo_a")),
    "attention.o_b": _module_paths(_ATTENTION, ("o_b_proj", "wo_b")),
    "attention.indexer": _module_paths(_ATTENTION, ("indexer.wq_b",)),
    "mixer.in": _module_paths(_MIXERS, ("in_proj", "in_proj_qkvz", "in_proj_qkv")),
    "mixer.out": _module_paths(_MIXERS, ("out_proj",)),
    "mlp": _module_paths(
        ("mlp", "feed_forward", "mixer"), ("gate_proj", "up_proj", "down_proj", "gate_up_proj")
    ),
    "moe.experts": _module_paths(
        _EXPERT_HOMES,
        ("experts.0.gate_proj", "experts.0.up_proj", "experts.0.down_proj", "experts.0.w1"),
    ),
    "moe.shared": (
        *_module_paths(_EXPERT_HOMES, ("shared_experts.up_proj", "shared_expert.up_proj")),
        "share_expert.up_proj",
    ),
    "moe.latent": ("mixer.fc1_latent_proj",),
}

# The same where a dense block named ``mlp`` runs beside the experts (Gemma 4).
BESIDE: dict[str, tuple[str, ...]] = {
    **MODULES,
    "moe.experts": ("experts.0.gate_proj", "experts.0.up_proj", "moe.experts.0.up_proj"),
    "moe.shared": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}


@dataclass
class Matched:
    """Tensor names that patterns mean, everywhere or by layer, and patterns not understood."""

    everywhere: set[str] = field(default_factory=set)
    by_layer: dict[int, set[str]] = field(default_factory=dict)
    head: bool = False
    strange: list[str] = field(default_factory=list)

    def of(self, layer: int) -> set[str]:
        return self.everywhere | self.by_layer.get(layer, set())


def match_modules(patterns: Iterable[str], *, beside: bool = False) -> Matched:
    """Return what the patterns of one list mean together."""
    names, out = BESIDE if beside else MODULES, Matched()
    tensors: dict[str, frozenset[str]] = {}
    for pattern in patterns:
        globs = _pattern_globs(pattern)
        if globs is None:
            out.strange.append(pattern[:80])
            continue
        for glob in globs:
            layer, rest = _layer_of(glob)
            out.head |= rest in _HEADS
            if rest not in tensors:
                tensors[rest] = _tensors(rest, names)
            layer_tensors = out.everywhere
            if layer is not None:
                layer_tensors = out.by_layer.setdefault(layer, set())
            layer_tensors.update(tensors[rest])
    return out


def _tensors(glob: str, names: dict[str, tuple[str, ...]]) -> frozenset[str]:
    if glob.startswith(_OTHER_PARTS):
        return frozenset()
    forms = (glob, f"{glob}.*", f"*.{glob}", f"*.{glob}.*")
    return frozenset(
        name
        for name, paths in names.items()
        if any(fnmatchcase(f"l.{p}", form) for p in paths for form in forms)
    )


def _pattern_globs(pattern: str) -> list[str] | None:
    """A pattern as globs; None for regexes beyond a small subset.

    The subset: dots, stars, classes of digits and one level of alternatives.
    """
    if len(pattern) > MAX_LENGTH:
        return None
    if not pattern.startswith("re:"):
        return [pattern]
    # A literal dot must survive the replacement of "any character".
    text = pattern[3:].strip("^$").replace("\\.", "\0")
    for regex in (r"\d+", r"[0-9]+", ".*", ".+"):
        text = text.replace(regex, "*")
    text = text.replace("\0", ".")
    pieces = re.split(r"\(([\w.|*]+)\)", text)
    choices = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MAX_ALTERNATIVES or any(
        set(piece) & set("()[]{}\\|?+^$") for choice in choices for piece in choice
    ):
        return None
    return ["".join(parts) for parts in product(*choices)]


def _layer_of(glob: str) -> tuple[int | None, str]:
    """The layer index that a glob names, and what stands after it."""
    parts = glob.split(".")
    for i, part in enumerate(parts[:-1]):
        if part in ("layers", "h", "blocks", "*layers"):
            index, rest = parts[i + 1], ".".join(parts[i + 2 :])
            if index.rstrip("*").isdecimal() and len(index) < 6:
                return int(index.rstrip("*")), rest or "*"
            return None, rest or "*"
    return None, glob.removeprefix("model.")


# Inputs that share a scale in formats that leave no choice.
GROUPS = {"nvfp4": 16, "mxfp4": 32}


@dataclass(frozen=True, slots=True)
class Format:
    """A stored format: our dtype and the edge of scale blocks that cuts must respect.

    ``value_bytes``: bytes per value where a group size determines them; ``group``: that size.

    ``scales``: what one scale of an fp8 matrix covers ("tensor", "channel" or "block").
    """

    dtype: str
    block: int | None = None
    value_bytes: float | None = None
    scales: str | None = None
    group: int | None = None

    @property
    def stored(self) -> Stored:
        """Return what of it concerns memory and cuts."""
        group = self.group or GROUPS.get(self.dtype)
        return Stored(self.dtype, self.block, self.value_bytes, group)


def fp8_format(scales: str, block: int = 128) -> Format:
    """Fp8 weights with one scale a tensor, a channel (row) or a square block."""
    if scales == "block":
        return Format("fp8-block", block, scales="block")
    return Format("fp8", scales=scales)


def grouped_int(bits: int, group: int, *, zero_points: bool) -> Format:
    """Integers with a 16-bit scale (and zero point) per ``group`` values; a group ≤ 0 is a row."""
    overhead = (2 + (bits / 8 if zero_points else 0)) / group if group > 0 else 0.0
    return Format(f"int{bits}", None, bits / 8 + overhead, group=group if group > 0 else None)


def algorithm_format(name: str) -> Format | None:
    """The format of a ``quant_algo`` of NVIDIA Model Optimizer; None where it is unknown."""
    algorithm_formats = {
        "FP8": fp8_format("tensor"),
        "FP8_PER_CHANNEL_PER_TOKEN": fp8_format("channel"),
        "FP8_PB_WO": fp8_format("block"),
        "NVFP4": Format("nvfp4"),
        "W4A16_NVFP4": Format("nvfp4"),
        "NVFP4_AWQ": Format("nvfp4"),
        "W4A8_NVFP4_FP8": Format("nvfp4"),
        "MXFP4": Format("mxfp4"),
        "W4A8_MXFP4_FP8": Format("mxfp4"),
        "MXFP8": Format("fp8", None, 1 + 1 / 32),
        "INT4_AWQ": grouped_int(4, 128, zero_points=True),
        "W4A16_AWQ": grouped_int(4, 128, zero_points=True),
        "W4A8_AWQ": grouped_int(4, 128, zero_points=True),
        "W8A8_SQ_PER_CHANNEL": Format("int8"),
        "INT8_SQ": Format("int8"),
        "W8A16": Format("int8"),
    }
    return algorithm_formats.get(name.upper())


def compressed_tensors_format(weights: Reader, format_name: str) -> Format:
    """A ``weights`` object of compressed-tensors: bits, type, strategy, group or block size."""
    bits = weights.whole(("num_bits",), 16)
    kind = str(weights.config.get("type", "int"))
    strategy = str(weights.config.get("strategy") or "")
    group = weights.whole(("group_size",), MAX_WIDTH, default=0, minimum=-1)
    if kind == "float" and bits == 8:
        return _fp8(weights, strategy, group)
    if kind == "float" and bits == 4:
        return Format("mxfp4") if "mxfp4" in format_name or group == 32 else Format("nvfp4")
    if kind == "int" and bits in (4, 8):
        return grouped_int(bits, group, zero_points=weights.config.get("symmetric") is False)
    raise unknown_format(weights, "num_bits", f"{bits}-bit {kind} weights are")


def _fp8(weights: Reader, strategy: str, group: int) -> Format:
    if strategy == "block":
        sizes = weights.wholes("block_structure", MAX_WIDTH, length=2)
        return fp8_format("block", sizes[0] if sizes else 128)
    if group == 32:
        return Format("fp8", None, 1 + 1 / 32)
    return fp8_format("channel" if strategy == "channel" else "tensor")


def quark_format(weight: Reader) -> Format:
    """A ``weight`` object of AMD Quark: dtype, scheme and group size."""
    dtype = str(weight.config.get("dtype", "")).lower()
    group = weight.whole(("group_size",), MAX_WIDTH, default=0, minimum=-1)
    if dtype.startswith("fp8"):
        return fp8_format("channel" if weight.config.get("qscheme") == "per_channel" else "tensor")
    if dtype in ("fp4", "mxfp4"):
        return Format("mxfp4")
    if dtype in ("int4", "uint4", "int8", "uint8"):
        return grouped_int(int(dtype[-1]), group, zero_points=dtype.startswith("u"))
    raise unknown_format(weight, "dtype", f"weights in {dtype or 'no stated format'!r} are")


# Bits a weight over a whole GGUF file by its type, embedding and head included: those of the
# techniques of the same names (``compression/techniques.yaml``).
GGUF_BITS: dict[str, float] = {
    "IQ1_S": 1.56,
    "IQ1_M": 1.75,
    "IQ2_XXS": 2.06,
    "IQ2_XS": 2.31,
    "IQ2_S": 2.5,
    "IQ2_M": 2.7,
    "Q2_K_S": 2.9,
    "Q2_K": 2.96,
    "IQ3_XXS": 3.06,
    "IQ3_XS": 3.3,
    "IQ3_S": 3.44,
    "Q3_K_S": 3.5,
    "IQ3_M": 3.66,
    "Q3_K_M": 3.91,
    "IQ4_XS": 4.25,
    "MXFP4": 4.25,
    "Q3_K_L": 4.27,
    "IQ4_NL": 4.5,
    "Q4_0": 4.55,
    "Q4_K_S": 4.58,
    "Q4_K_M": 4.85,
    "Q4_1": 5.0,
    "Q5_0": 5.5,
    "Q5_K_S": 5.54,
    "Q5_K_M": 5.69,
    "Q5_1": 6.0,
    "Q6_K": 6.56,
    "Q8_0": 8.5,
}

# Types that others than llama.cpp name, and the plain one of about that size.
_PLAIN_GGUF = {"Q3_K_XL": "Q3_K_L", "Q8_K_XL": "Q8_0", "MXFP4_MOE": "MXFP4"}


def gguf_type(file_type: str) -> str | None:
    """The plain type of a GGUF file by how it is called; None for one that is not known.

    Publishers call mixtures of their own ``_L`` and ``_XL``: a little more than the plain one.
    """
    name = file_type.upper()
    name = _PLAIN_GGUF.get(name, name)
    stem = re.sub(r"_X?L$", "", name)
    return next((t for t in (name, f"{stem}_M", stem, f"{stem}_0") if t in GGUF_BITS), None)


def gguf_format(read: Reader) -> Format:
    """A GGUF file by its ``file_type``: bits over the whole file, next to 4 or to 8 of them."""
    file_type = str(read.config.get("file_type", ""))
    plain = gguf_type(file_type)
    if plain is None:
        type_names = ", ".join(GGUF_BITS)
        raise read.error(
            "file_type", f"{file_type[:40]!r} is no type of a GGUF file.", f"Known: {type_names}."
        )
    bits = GGUF_BITS[plain]
    integers = "int4" if bits <= 6 else "int8"
    return Format("mxfp4" if plain == "MXFP4" else integers, None, bits / 8)


def unknown_format(read: Reader, name: str, subject: str) -> ModelError:
    """The error for a format that is not modelled."""
    hint = "Supported: fp8, AWQ, GPTQ, mxfp4, nvfp4, modelopt, bitsandbytes, "
    hint += "compressed-tensors and quark."
    return read.error(name, f"{subject} not modelled yet.", hint)
