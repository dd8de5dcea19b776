"""Reading ``quantization_config`` or ModelOpt's ``hf_quant_config``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from recipe_core.models.config.fields import MAX_WIDTH, Reader
from recipe_core.models.config.formats import (
    MAX_PATTERNS,
    Format,
    Matched,
    algorithm_format,
    compressed_tensors_format,
    fp8_format,
    gguf_format,
    gguf_type,
    grouped_int,
    match_modules,
    quark_format,
    unknown_format,
)
from recipe_core.models.spec import Layer
from recipe_core.models.tensors import MATRIX_ROLES, Quantization, Role, Stored

_EXPERTS = ("mlp.experts", "experts")
# Fields that list the modules which a quantiser left as they were.
LEFT_OUT = (
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
    """All rules of a checkpoint, the modules they skip, its cache format, and who wrote it.

    ``file_format``: the format of embedding and head too, where a format is of a whole file.
    """

    rules: tuple[Rule, ...]
    left_out: tuple[str, ...]
    kv_dtype: str | None
    method: str
    file_format: Format | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model's layers marked with their unquantised tensors, the quantisation and the cache."""

    layers: tuple[Layer, ...]
    quantization: Quantization | None
    kv_dtype: str | None
    notes: tuple[str, ...] = ()


def read_quantization(
    raw: Any, layers: tuple[Layer, ...], hidden: int, field: str, *, beside: bool
) -> Quantized:
    """Apply a raw ``quantization_config`` to a model's layers; ``field`` is its place in errors."""
    if not raw:
        return Quantized(layers, None, None)
    outer = Reader({"quantization_config": raw}, field)
    read = outer.inside("quantization_config")
    # ModelOpt's file nests everything once more.
    if isinstance(read.config.get("quantization"), Mapping):
        read = read.inside("quantization")
    scheme = _read_scheme(read)
    left_out = match_modules(scheme.left_out, beside=beside)
    marked, formats, roles = _apply_formats(scheme, left_out, layers, hidden, beside=beside)
    if not roles:
        notes: tuple[str, ...] = ("The quantisation excludes every matrix.",)
        return Quantized(layers, None, scheme.kv_dtype, notes)
    # Experts hold most of the weights, else the dense feed-forward does.
    largest = "experts" if "experts" in formats else max(formats, key=lambda r: (r == "linear", r))
    main = formats[largest]
    mixed = tuple(
        (role, form.stored)
        for role, form in sorted(formats.items(), key=lambda entry: entry[0])
        if form.dtype != main.dtype
    )
    notes = _quantization_notes(left_out, mixed)
    written = f"{scheme.method}/{main.scales}" if main.scales else scheme.method
    quantization = Quantization(
        main.dtype,
        frozenset(roles),
        main.block,
        main.value_bytes,
        mixed,
        written,
        group=main.stored.group,
    )
    return Quantized(marked, quantization, scheme.kv_dtype, notes)


def _quantization_notes(left_out: Matched, mixed: Sequence[tuple[Role, Stored]]) -> tuple[str, ...]:
    notes = []
    if left_out.strange:
        patterns = ", ".join(left_out.strange[:3])
        notes.append(f"Quantisation patterns not understood and not applied: {patterns}.")
    if mixed:
        formats = ", ".join(f"{role} in {stored.dtype}" for role, stored in mixed)
        notes.append(f"Mixed precision: {formats}.")
    return tuple(notes)


def _apply_formats(
    scheme: Scheme, left_out: Matched, layers: tuple[Layer, ...], hidden: int, *, beside: bool
) -> tuple[tuple[Layer, ...], dict[Role, Format], set[Role]]:
    """Mark each layer's unquantised tensors, and find the prevailing format of every role."""
    rules = [
        (rule.format, match_modules(rule.targets, beside=beside) if rule.targets else None)
        for rule in scheme.rules
    ]
    votes: dict[Role, Counter[Format]] = {}
    plain: list[set[str]] = []
    turned: list[dict[str, Format]] = []
    role_of: dict[str, Role] = {}
    tables = {
        layer: [item for item in layer.tensors(hidden) if item.role in MATRIX_ROLES]
        for layer in set(layers)
    }
    for i, layer in enumerate(layers):
        skipped, unquantized, layer_formats = left_out.of(i), set[str](), dict[str, Format]()
        for item in tables[layer]:
            role_of[item.name] = item.role
            form = None
            if item.name not in skipped:
                form = next((f for f, m in rules if m is None or item.name in m.of(i)), None)
            if form is None:
                unquantized.add(item.name)
            else:
                votes.setdefault(item.role, Counter())[form] += item.numel
                layer_formats[item.name] = form
        plain.append(unquantized)
        turned.append(layer_formats)
    formats: dict[Role, Format] = {
        role: count.most_common(1)[0][0] for role, count in votes.items()
    }
    roles: set[Role] = set(formats)
    head = next((f for f, m in rules if m is not None and m.head and not left_out.head), None)
    if scheme.file_format is not None:
        formats |= {"head": scheme.file_format, "embedding": scheme.file_format}
    elif head is not None:
        formats["head"] = head
    roles |= formats.keys()
    marked = []
    for layer, names, layer_formats in zip(layers, plain, turned, strict=True):
        exceptions = tuple(sorted(name for name in names if role_of[name] in roles))
        stored = tuple(
            (name, form.stored)
            for name, form in sorted(layer_formats.items())
            if form.dtype != formats[role_of[name]].dtype
        )
        marked.append(replace(layer, unquantized=exceptions, stored=stored))
    return tuple(marked), formats, roles


def _read_scheme(read: Reader) -> Scheme:
    """The rules of whichever quantiser wrote this."""
    method = str(read.config.get("quant_method") or "").lower()
    if method == "gguf":
        form = gguf_format(read)
        kind = f"gguf/{gguf_type(str(read.config['file_type']))}"
        if form.dtype == "mxfp4":
            return Scheme((Rule(form, _EXPERTS),), (), None, kind)
        return Scheme((Rule(form),), (), None, kind, file_format=form)
    # Of an fp8 checkpoint that was quantised again, the modules left out are still fp8.
    requantized = method == "fp8" and read.has("quantized_layers")
    left_out = () if requantized else _module_patterns(read, LEFT_OUT)
    return Scheme(
        _quantizer_rules(read, method), left_out, _cache_format(read), method or "modelopt"
    )


def _module_patterns(read: Reader, names: Iterable[str]) -> tuple[str, ...]:
    patterns = tuple(word for name in names for word in read.words(name))
    if len(patterns) > MAX_PATTERNS:
        raise read.error("ignore", f"lists {len(patterns):,} modules, more than {MAX_PATTERNS:,}.")
    return patterns


def _quantizer_rules(read: Reader, method: str) -> tuple[Rule, ...]:
    if method in ("fp8", "fbgemm_fp8"):
        sizes = read.wholes("weight_block_size", MAX_WIDTH, length=2)
        form = fp8_format("channel" if method == "fbgemm_fp8" else "tensor")
        if sizes:
            form = fp8_format("block", sizes[0])
        return (*_four_bit_experts(read), Rule(form))
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
        return (Rule(_integer_format(read, method)),)
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
        algorithm = algorithm_format(str(read.config[name]))
        if algorithm is None:
            raise unknown_format(read, name, f"{str(read.config[name])[:40]!r} is")
        return (Rule(algorithm),)
    raise unknown_format(read, "quant_method", f"the method {method[:40] or 'none'!r} is")


def _four_bit_experts(read: Reader) -> tuple[Rule, ...]:
    """Experts in 4 bits among fp8 (DeepSeek-V4): mxfp4, or ModelOpt's format (as in vLLM)."""
    dtype = read.config.get("expert_dtype")
    if dtype in (None, "fp8"):
        return ()
    form = algorithm_format(str(read.config.get("moe_quant_algo") or "MXFP4"))
    if dtype != "fp4" or form is None:
        raise unknown_format(read, "expert_dtype", f"{str(dtype)[:40]!r} is")
    return (Rule(form, _EXPERTS),)


def _integer_format(read: Reader, method: str) -> Format:
    bits = read.whole(("bits", "w_bit"), 16, default=4)
    if bits not in (4, 8):
        raise unknown_format(read, "bits", f"{bits}-bit {method} is")
    return grouped_int(
        bits,
        read.whole(("group_size", "q_group_size"), MAX_WIDTH, default=128, minimum=-1),
        zero_points=True,
    )


def _bitsandbytes(read: Reader) -> Format:
    """NF4/FP4: blocks of 64 with a 32-bit scale (QLoRA, arXiv:2305.14314); or LLM.int8().

    Double quantisation stores 8-bit scales.
    """
    if not read.has("load_in_4bit", "_load_in_4bit"):
        return Format("int8")
    doubly = read.has("bnb_4bit_use_double_quant")
    return Format("int4", None, 0.5 + (1 / 64 + 4 / (64 * 256) if doubly else 4 / 64))


def _quark_rules(read: Reader) -> tuple[Rule, ...]:
    rules = []
    layered = read.inside("layer_quant_config")
    for pattern in layered.config:
        weight = layered.inside(pattern).inside("weight")
        if weight.config:
            rules.append(Rule(quark_format(weight), (str(pattern),)))
    return (*rules, Rule(quark_format(read.inside("global_quant_config").inside("weight"))))


def _modelopt_mixed(read: Reader) -> tuple[Rule, ...]:
    """Per-module formats, gathered by format."""
    layers, by_format = read.inside("quantized_layers"), dict[Format, list[str]]()
    if len(layers.config) > MAX_PATTERNS:
        raise read.error(
            "quantized_layers", f"lists {len(layers.config):,} modules, more than {MAX_PATTERNS:,}."
        )
    for module in layers.config:
        algorithm = str(layers.inside(module).config.get("quant_algo"))
        form = algorithm_format(algorithm)
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
        form = compressed_tensors_format(
            group.inside("weights"),
            str(group.config.get("format") or read.config.get("format") or ""),
        )
        targets = tuple(t for t in group.words("targets") if t != "Linear")
        linear = "Linear" in (group.config.get("targets") or ["Linear"])
        rules.append(Rule(form, () if linear else targets))
    if not rules:
        raise unknown_format(read, "config_groups", "a quantisation without weights is")
    # Rules for single modules go before the rule for all.
    return tuple(sorted(rules, key=lambda rule: not rule.targets))


def _cache_format(read: Reader) -> str | None:
    """The KV cache's format where the checkpoint carries scales for one."""
    cache: Any = (
        read.config.get("kv_cache_quant_algo")
        or read.config.get("kv_cache_scheme")
        or _quark_cache(read)
    )
    if cache is None:
        return None
    if isinstance(cache, Mapping):
        entry = cast("Mapping[str, Any]", cache)
        return "fp8" if entry.get("num_bits") == 8 and entry.get("type") == "float" else None
    return "fp8" if str(cache).lower().startswith("fp8") else None


def _quark_cache(read: Reader) -> Any:
    if not read.has("kv_cache_quant_config", "kv_cache_group"):
        return None
    config = read.config.get("kv_cache_quant_config")
    first = next(iter(config.values()), None) if isinstance(config, Mapping) else None
    output = first.get("output_tensors") if isinstance(first, Mapping) else None
    return output.get("dtype") if isinstance(output, Mapping) else None
