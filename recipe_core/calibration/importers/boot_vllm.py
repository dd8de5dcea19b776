"""Start-up logs of vLLM: weights, cache, graphs, and the configuration that it prints.

Lines as in vLLM 0.2 to 0.32 (``gpu_model_runner.py``, ``gpu_worker.py``, ``kv_cache_utils.py``,
``core.py``, ``worker.py``), also alone, as they are pasted. Every rank logs its weights; the
fullest counts. Its "GB" of weights are GiB.
"""

from __future__ import annotations

from recipe_core.base.units import GIB
from recipe_core.calibration.importers.content import Content, one_line
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import MEMORY, Imported, drop_unstated
from recipe_core.calibration.importers.logs import (
    GAP,
    NUMBER,
    Pattern,
    last_value,
    match_log_texts,
    read_log_figures,
    round_figures,
)

NAME = "vllm-log"
# Words of which one is enough: pasted lines rarely name the engine.
SIGNS = (
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
PATTERNS = (
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
TEXTS = {
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
    return any(sign in content.head for sign in SIGNS)


def _read_vllm_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, PATTERNS)
    texts = match_log_texts(content, TEXTS)
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
            format=NAME,
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


FORMAT = Format(NAME, "start-up log of vLLM", _is_vllm_log, _read_vllm_log)
