"""Which tensors a quantisation's module names mean.

"ignore" lists, globs and regexes are mapped onto the tensor table.

Patterns come from strangers' files, so no regex of theirs is ever run: a safe subset is rewritten
as a glob and the rest is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product

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
    """What the patterns of one list mean together."""
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
