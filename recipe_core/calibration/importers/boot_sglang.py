"""Start-up logs of SGLang: weights, cache, graphs, and the arguments that it prints.

Lines as in SGLang 0.4 and 0.5 (``model_runner.py``, ``memory_pool.py``, ``scheduler.py``); its "GB"
are GiB. The memory of weights is what loading took from the device; the fullest rank counts.
"""

from __future__ import annotations

import re

from recipe_core.base.units import GIB
from recipe_core.calibration.importers.content import Content, one_line, parse_number
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

NAME = "sglang-log"
SIGNS = (
    "server_args=ServerArgs(",
    "KV Cache is allocated. #tokens:",
    "Load weight end.",
    "max_total_num_tokens=",
)
PATTERNS = (
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
TEXTS = {
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
    return any(sign in content.head for sign in SIGNS)


def _read_sglang_log(content: Content) -> list[Imported]:
    figures = read_log_figures(content, PATTERNS)
    texts = match_log_texts(content, TEXTS)
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
            format=NAME,
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


FORMAT = Format(NAME, "start-up log of SGLang", _is_sglang_log, _read_sglang_log)
