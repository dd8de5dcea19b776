"""Start-up logs of vLLM: weights, cache, graphs, and the configuration that it prints.

Lines as in vLLM 0.2 to 0.32 (``gpu_model_runner.py``, ``gpu_worker.py``, ``kv_cache_utils.py``,
``core.py``, ``worker.py``), also alone, as they are pasted. Every rank logs its weights; the
fullest counts. Its "GB" of weights are GiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.measurement import (
    LONGEST_LINE,
    MEMORY,
    Content,
    Format,
    Imported,
    drop_unstated,
    one_line,
    parse_number,
)

NUMBER = r"([\d.,]{1,40}(?:[eE][+-]?\d{1,4})?)"

# Between a line's words and its figure: bounded, for lines that strangers may write.
GAP = r".{0,300}?"


@dataclass(frozen=True)
class Pattern:
    """A figure of a log: its name, where it stands, and what makes one of several ranks' values."""

    name: str
    expression: str
    scale: float = 1.0
    among: Callable[[Iterable[float]], float] = max

    def compiled(self) -> re.Pattern[str]:
        """The expression, whose first group is the number."""
        return re.compile(self.expression)


def read_log_figures(content: Content, patterns: Sequence[Pattern]) -> dict[str, float]:
    """The figures that a log's lines state, of the last start in it.

    Raises:
        InputError: naming the line whose figure is no number.
    """
    compiled = [(pattern, pattern.compiled()) for pattern in patterns]
    values: dict[str, list[float]] = {}
    for number, line in enumerate(content.log, 1):
        for pattern, expression in compiled:
            match = expression.search(line[:LONGEST_LINE])
            if match:
                value = _parse_log_number(match[1], content, number, pattern.name)
                values.setdefault(pattern.name, []).append(value * pattern.scale)
    reducers = {pattern.name: pattern.among for pattern in patterns}
    return {name: reducers[name](rank_values) for name, rank_values in values.items()}


def _parse_log_number(text: str, content: Content, line: int, name: str) -> float:
    try:
        return parse_number(text.rstrip(".,"))
    except ValueError as error:
        raise InputError(f"{content.name}, line {line}: {name}: {error}.", field=name) from None


def match_log_texts(content: Content, expressions: Mapping[str, str]) -> dict[str, str]:
    """The first match of each expression in a log's start."""
    matches = {name: re.search(text, content.head) for name, text in expressions.items()}
    return {name: match[1] for name, match in matches.items() if match}


def last_value(values: Iterable[float]) -> float:
    return list(values)[-1]


def round_figures(figures: Mapping[str, float], names: Iterable[str]) -> dict[str, int]:
    return {name: round(figures[name]) for name in names if name in figures}


TENSORRT_LLM_NAME = "tensorrt-llm-log"
TENSORRT_LLM_SIGNS = ("[TensorRT-LLM][INFO]", "[TRT-LLM] [I]", "[TRT-LLM] [RANK 0] [I]")
_CACHE = r"\[MemUsageChange\] Allocated {} GiB for max tokens in paged KV cache \({}\)"
TENSORRT_LLM_PATTERNS = (
    Pattern("weights_bytes", rf"Loaded engine size: {NUMBER} MiB", float(1 << 20)),
    Pattern(
        "weights_bytes",
        rf"Memory used after loading model weights \(inside torch\){GAP}: {NUMBER} GiB",
        GIB,
    ),
    Pattern("kv_cache_bytes", _CACHE.format(NUMBER, r"\d+"), GIB, last_value),
    Pattern("kv_cache_tokens", _CACHE.format(r"[\d.]+", NUMBER), 1.0, last_value),
    Pattern(
        "peak_memory_bytes", rf"Peak memory during memory usage{GAP}: {NUMBER} GiB", GIB, last_value
    ),
    Pattern("memory_fraction", rf"fraction is set {NUMBER}", 1.0, last_value),
    Pattern("max_context", rf"\bmax_seq_len['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("max_num_seqs", rf"\bmax_batch_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("max_batched_tokens", rf"\bmax_num_tokens['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("tp", rf"\btensor_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("pp", rf"\bpipeline_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("ep", rf"\bmoe_expert_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
)
TENSORRT_LLM_TEXTS = {
    "version": r"TensorRT-LLM version: ?v?([\w.]{1,40})",
    "model": r"\bmodel(?:_path)?=(?:PosixPath\()?['\"]([^'\"]{1,200})['\"]",
    "kv_cache_dtype": r"kv_cache_dtype=['\"](\w{1,40})",
}


def _is_tensorrt_llm_log(content: Content) -> bool:
    return any(sign in content.head for sign in TENSORRT_LLM_SIGNS)


def _read_tensorrt_llm_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, TENSORRT_LLM_PATTERNS)
    texts = match_log_texts(content, TENSORRT_LLM_TEXTS)
    split: dict[str, object] = dict(round_figures(figures, ("tp", "pp", "ep", "max_num_seqs")))
    if "memory_fraction" in figures:
        split["memory_fraction"] = round(figures["memory_fraction"], 6)
    names = ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens")
    return [
        Imported(
            format=TENSORRT_LLM_NAME,
            engine="tensorrt-llm",
            version=texts.get("version", "").rstrip("."),
            model=one_line(texts.get("model", "")),
            figures={name: figures[name] for name in names if figures.get(name, 0) > 0},
            split=split,
            settings=drop_unstated(
                kv_cache_dtype=texts.get("kv_cache_dtype"),
                **round_figures(figures, ("max_context", "max_batched_tokens")),
            ),
        )
    ]


TENSORRT_LLM_LOG = Format(
    TENSORRT_LLM_NAME, "start-up log of TensorRT-LLM", _is_tensorrt_llm_log, _read_tensorrt_llm_log
)


SGLANG_NAME = "sglang-log"
SGLANG_SIGNS = (
    "server_args=ServerArgs(",
    "KV Cache is allocated. #tokens:",
    "Load weight end.",
    "max_total_num_tokens=",
)
SGLANG_PATTERNS = (
    Pattern("weights_bytes", rf"Load weight end\.{GAP}mem usage={NUMBER} GB", GIB),
    Pattern("kv_cache_tokens", rf"KV Cache is allocated\.{GAP}#tokens: {NUMBER}", 1.0, min),
    Pattern("kv_cache_bytes", rf"KV Cache is allocated\.{GAP}KV size: {NUMBER} GB", GIB, min),
    Pattern("kv_cache_tokens", rf"max_total_num_tokens={NUMBER}", 1.0, min),
    Pattern("graph_bytes", rf"Capture cuda graph end\.{GAP}mem usage={NUMBER} GB", GIB),
    Pattern("max_context", rf"\bcontext_len={NUMBER}", 1.0, last_value),
    Pattern("max_batched_tokens", rf"\bchunked_prefill_size={NUMBER}", 1.0, last_value),
    Pattern("max_num_seqs", rf"\bmax_running_requests={NUMBER}", 1.0, last_value),
    Pattern("memory_fraction", rf"\bmem_fraction_static={NUMBER}", 1.0, last_value),
    Pattern("tp", rf"\btp_size={NUMBER}", 1.0, last_value),
    Pattern("pp", rf"\bpp_size={NUMBER}", 1.0, last_value),
    Pattern("dp", rf"\bdp_size={NUMBER}", 1.0, last_value),
    Pattern("ep", rf"\bep_size={NUMBER}", 1.0, last_value),
)
SGLANG_TEXTS = {
    "version": r"sglang(?:\[\w+\])?[=: ]+v?(\d{1,4}\.\d{1,4}[\w.]{0,30})",
    "model": r"\bmodel_path=['\"]([^'\"]{1,200})['\"]",
    "dtype": r"Load weight end\..{0,300}?dtype=torch\.(\w{1,40})",
    "quantization": r"\bquantization='(\w[\w-]{0,40})'",
    "kv_cache_dtype": r"(?:Using KV cache dtype: torch\.|\bkv_cache_dtype=')(\w{1,40})",
    "radix_off": r"\bdisable_radix_cache=(True|False)",
    "dp_attention": r"\benable_dp_attention=(True|False)",
}
HALVES = re.compile(
    r"KV Cache is allocated\..{0,300}K size: ([\d.]{1,12}) GB, V size: ([\d.]{1,12}) GB"
)


def _is_sglang_log(content: Content) -> bool:
    return any(sign in content.head for sign in SGLANG_SIGNS)


def _read_sglang_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, SGLANG_PATTERNS)
    texts = match_log_texts(content, SGLANG_TEXTS)
    if halves := HALVES.findall(content.head):
        sizes_gib = [parse_number(keys) + parse_number(values) for keys, values in halves]
        figures["kv_cache_bytes"] = min(sizes_gib) * GIB
    if texts.get("dp_attention") == "True":
        # its dp are ranks of attention inside tp, which share the experts: tp × dp ranks of ours
        inside, ranks = figures.get("dp", 1.0), figures.get("tp", 1.0)
        figures |= {"tp": max(ranks // inside, 1.0), "ep": ranks}
    split: dict[str, object] = dict(
        round_figures(figures, ("tp", "pp", "dp", "ep", "max_num_seqs"))
    )
    if "memory_fraction" in figures:
        split["memory_fraction"] = figures["memory_fraction"]
    cached = texts.get("radix_off")
    names = ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens", "graph_bytes")
    return [
        Imported(
            format=SGLANG_NAME,
            engine="sglang",
            version=texts.get("version", ""),
            model=one_line(texts.get("model", "")),
            figures={name: figures[name] for name in names if figures.get(name, 0) > 0},
            split=split,
            settings=drop_unstated(
                quantization=texts.get("quantization"),
                kv_cache_dtype=texts.get("kv_cache_dtype"),
                prefix_caching=None if cached is None else cached == "False",
                **round_figures(figures, ("max_context", "max_batched_tokens")),
            ),
        )
    ]


SGLANG_LOG = Format(SGLANG_NAME, "start-up log of SGLang", _is_sglang_log, _read_sglang_log)


VLLM_NAME = "vllm-log"
# Words of which one is enough: pasted lines rarely name the engine.
VLLM_SIGNS = (
    "Initializing a V1 LLM engine (v",
    "Initializing an LLM engine (v",
    "vLLM API server version",
    "Starting vLLM server on",
    "GPU KV cache size:",
    "CPU KV cache size:",
    "# GPU blocks:",
    "# cuda blocks:",
    "# CUDA blocks:",
    "Available KV cache memory:",
    "Maximum concurrency for ",
    "PyTorch activation peak memory",
    "GiB for peak activation",
)
_ACTUAL = rf"Actual usage is{GAP}"
VLLM_PATTERNS = (
    Pattern("weights_bytes", rf"(?:Model loading|Loading model weights) took {NUMBER} ?Gi?B", GIB),
    Pattern("kv_cache_bytes", rf"Available KV cache memory: {NUMBER} GiB", GIB, min),
    Pattern("kv_cache_bytes", rf"Explicitly set \({NUMBER}/[\d.]+\) GiB for KV cache", GIB, min),
    Pattern("kv_cache_bytes", rf"reserved for KV Cache is {NUMBER} ?GiB", GIB, min),
    Pattern("kv_cache_bytes", rf"kv_cache_size={NUMBER} ?GiB", GIB, min),
    Pattern("kv_cache_bytes", rf"available_kv_cache_memory\s{{1,40}}{NUMBER} ?GiB", GIB, min),
    Pattern("kv_cache_bytes", rf"kv cache memory in use is {NUMBER} GiB", GIB, min),
    Pattern("kv_cache_bytes", rf"kv cache memory in use is {NUMBER} bytes", 1.0, min),
    Pattern("weights_bytes", rf"model weights take\s{{1,40}}{NUMBER} ?GiB", GIB),
    Pattern("weights_bytes", rf"{_ACTUAL}{NUMBER} GiB for weight", GIB),
    Pattern("activations_bytes", rf"activation peak memory(?: takes)?\s{{1,40}}{NUMBER} ?GiB", GIB),
    Pattern("activations_bytes", rf"{_ACTUAL}{NUMBER} GiB for peak activation", GIB),
    Pattern("runtime_bytes", rf"non_torch_memory(?: takes)?[\s=]{{1,40}}{NUMBER} ?GiB", GIB),
    Pattern("runtime_bytes", rf"{_ACTUAL}{NUMBER} GiB for non-torch memory", GIB),
    Pattern("graph_bytes", rf"{_ACTUAL}{NUMBER} GiB for CUDAGraph memory", GIB),
    Pattern("kv_cache_tokens", rf"KV cache size: {NUMBER} tokens", 1.0, min),
    Pattern("blocks", rf"# \w{{2,8}} blocks: {NUMBER}", 1.0, min),
    Pattern("max_concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {NUMBER}x"),
    Pattern("graph_bytes", rf"Graph capturing finished in \d+ secs?, took {NUMBER} GiB", GIB),
    Pattern("planned_graph_bytes", rf"Estimated CUDA graph memory: {NUMBER} GiB", GIB),
    Pattern(
        "max_context", rf"Maximum concurrency for {NUMBER} tokens per request", 1.0, last_value
    ),
    Pattern("max_context", rf"Using max model len {NUMBER}", 1.0, last_value),
    Pattern("max_context", rf"\bmax_(?:model|seq)_len['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("max_batched_tokens", rf"max_num_batched_tokens['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("max_num_seqs", rf"max_num_seqs['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("block_size", rf"\bblock_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("memory_fraction", rf"gpu_memory_utilization['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("memory_fraction", rf"gpu_memory_utilization \({NUMBER}\)", 1.0, last_value),
    Pattern("tp", rf"tensor_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("pp", rf"pipeline_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("dp", rf"data_parallel_size['\"]?[=:] ?{NUMBER}", 1.0, last_value),
    Pattern("prefix_hit", rf"Prefix cache hit rate: {NUMBER}%", 0.01, last_value),
)
VLLM_TEXTS = {
    "version": r"(?:engine \(v|API server version |  version )([\w.+-]{1,40})",
    "model": r"(?:\bmodel=|'model(?:_tag)?': ?)['\"]([^'\"]{1,200})['\"]",
    "dtype": r"\bdtype=(?:torch\.)?'?(\w{1,40})",
    "cast": r"(?:Upcasting|Downcasting|Casting) torch\.\w{1,20} to torch\.(\w{1,20})",
    "quantization": r"quantization['\"]?[=:] ?'?(\w[\w-]{0,40})",
    "kv_cache_dtype": r"kv_cache_dtype['\"]?[=:] ?'?(?:torch\.)?(\w{1,40})",
    "cache_set": r"(Explicitly set \([\d.]+/[\d.]+\) GiB for KV cache|kv_cache_memory_bytes=\d)",
    "enforce_eager": r"enforce_eager['\"]?[=:] ?(True|False)",
    "prefix_caching": r"enable_prefix_caching['\"]?[=:] ?(True|False)",
}
# Tokens of a block where a release before 0.6 does not say.
USUAL_BLOCK = 16
FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
QUANTIZATIONS = {"fp8": "fp8", "mxfp4": "mxfp4"}


def _is_vllm_log(content: Content) -> bool:
    return any(sign in content.head for sign in VLLM_SIGNS)


def _read_vllm_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, VLLM_PATTERNS)
    texts = match_log_texts(content, VLLM_TEXTS)
    if "kv_cache_tokens" not in figures and "blocks" in figures:
        figures["kv_cache_tokens"] = figures["blocks"] * figures.get("block_size", USUAL_BLOCK)
    split: dict[str, object] = dict(round_figures(figures, ("tp", "pp", "dp", "max_num_seqs")))
    if "memory_fraction" in figures:
        split["memory_fraction"] = figures["memory_fraction"]
    stored = FORMATS.get(texts.get("cast", texts.get("dtype", "")))
    quantization = texts.get("quantization", "None")
    weights = stored if quantization == "None" else QUANTIZATIONS.get(quantization)
    settings = drop_unstated(
        weight_dtype=weights,
        quantization="" if quantization == "None" else quantization,
        kv_cache_dtype=texts.get("kv_cache_dtype"),
        eager=_parse_log_flag(texts.get("enforce_eager")),
        prefix_caching=_parse_log_flag(texts.get("prefix_caching")),
        cache_set=True if "cache_set" in texts else None,
        prefix_hit=figures.get("prefix_hit"),
        planned_graph_bytes=figures.get("planned_graph_bytes"),
        **round_figures(figures, ("max_context", "max_batched_tokens", "block_size")),
    )
    return [
        Imported(
            format=VLLM_NAME,
            engine="vllm",
            version=texts.get("version", "").rstrip("."),
            model=one_line(texts.get("model", "")),
            figures={name: figures[name] for name in MEMORY if name in figures},
            split=split,
            settings=settings,
        )
    ]


def _parse_log_flag(text: str | None) -> bool | None:
    return None if text is None else text == "True"


VLLM_LOG = Format(VLLM_NAME, "start-up log of vLLM", _is_vllm_log, _read_vllm_log)
