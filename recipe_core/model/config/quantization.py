"""Reading ``quantization_config`` (or ModelOpt's ``hf_quant_config``): formats, what is left out, the cache's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from recipe_core.model.config.fields import MAX_WIDTH, Reader
from recipe_core.model.config.formats import (
    Format,
    compressed,
    fp8,
    grouped_int,
    named,
    quark,
    unknown_format,
)
from recipe_core.model.config.modules import MAX_PATTERNS, Matched, match
from recipe_core.model.quantization import Quantization
from recipe_core.model.spec import Layer
from recipe_core.model.tensors import MATRIX_ROLES, Role

_EXPERTS = ("mlp.experts", "experts")
_LEFT_OUT = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One format for the modules that ``targets`` name (empty: every matrix)."""

    format: Format
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scheme:
    """All rules of a checkpoint, the modules that none of them touches, the cache format it asks for, and who wrote it."""

    rules: tuple[Rule, ...]
    left_out: tuple[str, ...]
    kv_dtype: str | None
    method: str


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model's layers marked with what stays in the base dtype, the quantisation, the cache format, and notes."""

    layers: tuple[Layer, ...]
    quantization: Quantization | None
    kv_dtype: str | None
    notes: tuple[str, ...] = ()


def quantized(
    raw: Any, layers: tuple[Layer, ...], hidden: int, where: str, *, beside: bool
) -> Quantized:
    """Apply a raw ``quantization_config`` to a model's layers."""
    if not raw:
        return Quantized(layers, None, None)
    outer = Reader({"quantization_config": raw}, where)
    read = outer.inside("quantization_config")
    if isinstance(
        read.config.get("quantization"), Mapping
    ):  # ModelOpt's file nests everything once more
        read = read.inside("quantization")
    scheme = _scheme(read)
    left_out = match(scheme.left_out, beside=beside)
    marked, chosen, roles = _apply(scheme, left_out, layers, hidden, beside=beside)
    if not roles:
        return Quantized(
            layers, None, scheme.kv_dtype, ("The quantisation leaves every matrix out.",)
        )
    main = (
        chosen["experts"]
        if "experts" in chosen
        else chosen[max(chosen, key=lambda role: (role == "linear", role))]
    )
    others = tuple(
        sorted((role, form.dtype) for role, form in chosen.items() if form.dtype != main.dtype)
    )
    notes = _notes(left_out, others)
    written = f"{scheme.method}/{main.scales}" if main.scales else scheme.method
    quantization = Quantization(
        main.dtype, frozenset(roles), main.block, main.value_bytes, others, written
    )
    return Quantized(marked, quantization, scheme.kv_dtype, notes)


def _notes(left_out: Matched, others: Sequence[tuple[Role, str]]) -> tuple[str, ...]:
    notes = []
    if left_out.strange:
        notes.append(
            f"Quantisation patterns not understood and not applied: {', '.join(left_out.strange[:3])}."
        )
    if others:
        notes.append(
            "Mixed precision: " + ", ".join(f"{role} in {dtype}" for role, dtype in others) + "."
        )
    return tuple(notes)


def _apply(
    scheme: Scheme, left_out: Matched, layers: tuple[Layer, ...], hidden: int, *, beside: bool
) -> tuple[tuple[Layer, ...], dict[Role, Format], set[Role]]:
    """Mark each layer's unquantised tensors; the prevailing format of every role that is quantised anywhere."""
    rules = [
        (rule.format, match(rule.targets, beside=beside) if rule.targets else None)
        for rule in scheme.rules
    ]
    votes: dict[Role, Counter[Format]] = {}
    plain: list[set[str]] = []
    role_of: dict[str, Role] = {}
    tables = {
        layer: [item for item in layer.tensors(hidden) if item.role in MATRIX_ROLES]
        for layer in set(layers)
    }
    for i, layer in enumerate(layers):
        skipped, kept = left_out.of(i), set[str]()
        for item in tables[layer]:
            role_of[item.name] = item.role
            form = (
                None
                if item.name in skipped
                else next((f for f, m in rules if m is None or item.name in m.of(i)), None)
            )
            if form is None:
                kept.add(item.name)
            else:
                votes.setdefault(item.role, Counter())[form] += item.numel
        plain.append(kept)
    chosen: dict[Role, Format] = {role: count.most_common(1)[0][0] for role, count in votes.items()}
    roles: set[Role] = set(chosen)
    head = next((f for f, m in rules if m is not None and m.head and not left_out.head), None)
    if head is not None:
        chosen["head"] = head
        roles.add("head")
    exceptions = [tuple(sorted(name for name in kept if role_of[name] in roles)) for kept in plain]
    return (
        tuple(
            replace(layer, unquantized=names)
            for layer, names in zip(layers, exceptions, strict=True)
        ),
        chosen,
        roles,
    )


def _scheme(read: Reader) -> Scheme:
    """The rules of whichever quantiser wrote this."""
    method = str(read.config.get("quant_method") or "").lower()
    again = method == "fp8" and read.has(
        "quantized_layers"
    )  # of an fp8 checkpoint: what was not quantised again is still fp8
    left_out = () if again else _patterns(read, _LEFT_OUT)
    return Scheme(_rules(read, method), left_out, _cache_format(read), method or "modelopt")


def _patterns(read: Reader, names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(word for name in names for word in read.words(name))
    if len(found) > MAX_PATTERNS:
        raise read.error("ignore", f"lists {len(found):,} modules, more than {MAX_PATTERNS:,}.")
    return found


def _rules(read: Reader, method: str) -> tuple[Rule, ...]:
    if method in ("fp8", "fbgemm_fp8"):
        sizes = read.wholes("weight_block_size", MAX_WIDTH, length=2)
        every = Rule(
            fp8("block", sizes[0])
            if sizes
            else fp8("channel" if method == "fbgemm_fp8" else "tensor")
        )
        return (*_four_bit_experts(read), every)
    if method == "mxfp4":
        return (Rule(Format("mxfp4"), _EXPERTS),)
    if method in (
        "awq",
        "gptq",
        "auto-round",
        "auto_round",
        "intel/auto-round",
        "awq_marlin",
        "gptq_marlin",
    ):
        return (Rule(_integer(read, method)),)
    if method in ("bitsandbytes", "bnb"):
        return (Rule(_bitsandbytes(read)),)
    if method == "quark":
        return _quark_rules(read)
    if read.has("quantized_layers"):
        return _modelopt_mixed(read)
    if read.has("config_groups"):
        return _compressed_rules(read)
    if read.has("quant_algo", "moe_quant_algo"):
        name = "quant_algo" if read.has("quant_algo") else "moe_quant_algo"
        form = named(str(read.config[name]))
        if form is None:
            raise unknown_format(read, name, f"{str(read.config[name])[:40]!r} is")
        return (Rule(form),)
    raise unknown_format(read, "quant_method", f"the method {method[:40] or 'none'!r} is")


def _four_bit_experts(read: Reader) -> tuple[Rule, ...]:
    """Experts in 4 bit among fp8 (DeepSeek-V4): mxfp4, or what ModelOpt made of them (vLLM: ``deepseek_v4/quant_config.py``)."""
    stated = read.config.get("expert_dtype")
    if stated in (None, "fp8"):
        return ()
    form = named(str(read.config.get("moe_quant_algo") or "MXFP4"))
    if stated != "fp4" or form is None:
        raise unknown_format(read, "expert_dtype", f"{str(stated)[:40]!r} is")
    return (Rule(form, _EXPERTS),)


def _integer(read: Reader, method: str) -> Format:
    bits = read.whole(("bits", "w_bit"), 16, default=4)
    if bits not in (4, 8):
        raise unknown_format(read, "bits", f"{bits}-bit {method} is")
    return grouped_int(
        bits,
        read.whole(("group_size", "q_group_size"), MAX_WIDTH, default=128, minimum=-1),
        zero_points=True,
    )


def _bitsandbytes(read: Reader) -> Format:
    """NF4/FP4: blocks of 64 with a 32-bit scale, 8-bit when doubly quantised (QLoRA, arXiv:2305.14314); or LLM.int8()."""
    if not read.has("load_in_4bit", "_load_in_4bit"):
        return Format("int8")
    return Format(
        "int4",
        None,
        0.5 + (1 / 64 + 4 / (64 * 256) if read.has("bnb_4bit_use_double_quant") else 4 / 64),
    )


def _quark_rules(read: Reader) -> tuple[Rule, ...]:
    rules = []
    layered = read.inside("layer_quant_config")
    for pattern in layered.config:
        weight = layered.inside(pattern).inside("weight")
        if weight.config:
            rules.append(Rule(quark(weight), (str(pattern),)))
    return (*rules, Rule(quark(read.inside("global_quant_config").inside("weight"))))


def _modelopt_mixed(read: Reader) -> tuple[Rule, ...]:
    """Per-module formats, gathered by format."""
    layers, by_format = read.inside("quantized_layers"), dict[Format, list[str]]()
    if len(layers.config) > MAX_PATTERNS:
        raise read.error(
            "quantized_layers", f"lists {len(layers.config):,} modules, more than {MAX_PATTERNS:,}."
        )
    for module in layers.config:
        algorithm = str(layers.inside(module).config.get("quant_algo"))
        form = named(algorithm)
        if form is None:
            raise unknown_format(layers, str(module)[:60], f"{algorithm[:40]!r} is")
        by_format.setdefault(form, []).append(str(module))
    return tuple(Rule(form, tuple(modules)) for form, modules in by_format.items())


def _compressed_rules(read: Reader) -> tuple[Rule, ...]:
    groups, rules = read.inside("config_groups"), []
    for name in groups.config:
        group = groups.inside(name)
        if not group.has("weights"):
            continue
        form = compressed(
            group.inside("weights"),
            str(group.config.get("format") or read.config.get("format") or ""),
        )
        targets = tuple(t for t in group.words("targets") if t != "Linear")
        rules.append(
            Rule(
                form, targets if "Linear" not in (group.config.get("targets") or ["Linear"]) else ()
            )
        )
    if not rules:
        raise unknown_format(read, "config_groups", "a quantisation without weights is")
    return tuple(
        sorted(rules, key=lambda rule: not rule.targets)
    )  # named modules before the rule for all


def _cache_format(read: Reader) -> str | None:
    """The KV cache's format where the checkpoint carries scales for one."""
    stated: Any = (
        read.config.get("kv_cache_quant_algo")
        or read.config.get("kv_cache_scheme")
        or _quark_cache(read)
    )
    if stated is None:
        return None
    if isinstance(stated, Mapping):
        entry = cast("Mapping[str, Any]", stated)
        return "fp8" if entry.get("num_bits") == 8 and entry.get("type") == "float" else None
    return "fp8" if str(stated).lower().startswith("fp8") else None


def _quark_cache(read: Reader) -> Any:
    if not read.has("kv_cache_quant_config", "kv_cache_group"):
        return None
    config = read.config.get("kv_cache_quant_config")
    first = next(iter(config.values()), None) if isinstance(config, Mapping) else None
    output = first.get("output_tensors") if isinstance(first, Mapping) else None
    return output.get("dtype") if isinstance(output, Mapping) else None
