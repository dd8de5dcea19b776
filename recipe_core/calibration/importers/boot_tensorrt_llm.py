"""Start-up logs of TensorRT-LLM: weights, cache, limits.

Lines as in TensorRT-LLM 0.17 to 1.2 (``_util.py``, ``kvCacheManager.cpp``, ``py_executor``). The
cache is allocated twice, small for a trial run and then as it stays; the last counts.
"""

from __future__ import annotations

from recipe_core.base.units import GIB
from recipe_core.calibration.importers.content import Content, one_line
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported, drop_unstated
from recipe_core.calibration.importers.logs import (
    GAP,
    NUMBER,
    Pattern,
    last_value,
    match_log_texts,
    read_log_figures,
    round_figures,
)

NAME = "tensorrt-llm-log"
SIGNS = ("[TensorRT-LLM][INFO]", "[TRT-LLM] [I]", "[TRT-LLM] [RANK 0] [I]")
_CACHE = r"\[MemUsageChange\] Allocated {} GiB for max tokens in paged KV cache \({}\)"
PATTERNS = (
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
TEXTS = {
    "version": r"TensorRT-LLM version: ?v?([\w.]{1,40})",
    "model": r"\bmodel(?:_path)?=(?:PosixPath\()?['\"]([^'\"]{1,200})['\"]",
    "kv_cache_dtype": r"kv_cache_dtype=['\"](\w{1,40})",
}


def _is_tensorrt_llm_log(content: Content) -> bool:
    return any(sign in content.head for sign in SIGNS)


def _read_tensorrt_llm_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, PATTERNS)
    texts = match_log_texts(content, TEXTS)
    split: dict[str, object] = dict(round_figures(figures, ("tp", "pp", "ep", "max_num_seqs")))
    if "memory_fraction" in figures:
        split["memory_fraction"] = round(figures["memory_fraction"], 6)
    names = ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens")
    return [
        Imported(
            format=NAME,
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


FORMAT = Format(NAME, "start-up log of TensorRT-LLM", _is_tensorrt_llm_log, _read_tensorrt_llm_log)
