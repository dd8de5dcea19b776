"""Facts that rows of logged memory leave unsaid, read from the rest of their source.

Models by other names, settings that a source states elsewhere, and figures that follow from a
logged size of the cache alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recipe_core.base.units import GIB
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache import logged_tokens, longest_bytes
from recipe_core.estimates.serving.cache_blocks import shared_blocks


@dataclass(frozen=True)
class Reading:
    """Rows whose model is ``model`` and whose set-up contains ``words``, and what they mean.

    ``meant``: the model's id here. ``candidate``: settings that the row lacks or has otherwise.
    ``why``: shown beside the row.
    """

    model: str
    words: str = ""
    meant: str | None = None
    candidate: dict[str, Any] = field(default_factory=dict)
    release: str | None = None
    why: str = ""

    def concerns(self, row: Any) -> bool:
        """Return whether it reads this row."""
        return str(row.model) == self.model and self.words in str(row.setup)


_WIDE = "a 16-bit cache, as its tokens are whole blocks of 784 tokens (an fp8 cache has 1,568)"
_SORTED = "its peak is that of a sampler that sorts: before 0.17"
READINGS = (
    Reading(
        "Qwen3.8-27B", "(Inferact)", "Inferact/Qwen3.8-27B-NVFP4", {"kv_dtype": "bf16"},
        release="0.26.0", why=_WIDE,
    ),
    Reading("Qwen3.8-27B", "(unsloth)", "unsloth/Qwen3.8-27B-NVFP4", release="0.26.0"),
    Reading(
        "Qwen3.8-27B", "FP8 weights", "Qwen/Qwen3.8-27B-FP8", {"kv_dtype": "bf16"},
        release="0.26.0", why=_WIDE,
    ),
    Reading("Qwen3.8-27B nvfp4", "", "nvidia/Qwen3.8-27B-NVFP4", {"kv_dtype": "fp8"}),
    Reading("qwen3.6-35b-a3b-nvfp4", "", "nvidia/Qwen3.6-35B-A3B-NVFP4"),
    Reading("Llama-3.1-70B w8a8", "", "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8"),
    *(
        Reading(model, "1 rank of NVIDIA H100", release="0.16.0", why=_SORTED)
        for model in ("openai/gpt-oss-120b", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B")
    ),
    Reading(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "(layers",
        why="all 48 layers: that release counted those of both stages for each (vllm#34076)",
    ),
    Reading("moonshotai/Kimi-K2-Thinking", "decode-context-parallel", candidate={"cp": 8}),
    Reading(
        "deepseek-ai/DeepSeek-V4-Flash", "GH200", candidate={"ep": 2, "max_batched_tokens": 16_384},
        release="0.22.0", why="16,384 tokens a step, the default of vLLM's LLM class",
    ),
)  # fmt: skip


def reading_of(row: Any) -> Reading:
    """Return how a row is read; as it stands where nothing is known of it."""
    return next((reading for reading in READINGS if reading.concerns(row)), Reading(str(row.model)))


def longest_request(setting: Setting, cases: Cases, pool_bytes: float) -> float:
    """The longest context of which one request fits into a pool, in tokens."""
    low, high = 1, setting.model.max_context
    while low < high:
        middle = (low + high + 1) // 2
        fits = longest_bytes(setting, replace(cases, max_context=np.full(1, float(middle))))[0]
        low, high = (middle, high) if fits <= pool_bytes else (low, middle - 1)
    return float(low)


def page_tokens(setting: Setting, cases: Cases) -> float:
    """Tokens of a page of attention in a model with states."""
    shared = shared_blocks(setting, setting.model.kinds, cases)
    if shared is None or not shared.layer_groups:
        return float("nan")
    return float(np.ravel(next(group.tokens for group in shared.groups if group.window is None))[0])


def logged_cache_tokens(setting: Setting, cases: Cases, pool_bytes: float) -> float:
    """Tokens that an engine logs of a cache; NaN where it logs what the cache holds."""
    tokens = logged_tokens(setting, cases, pool_bytes)
    return float("nan") if tokens is None else float(tokens[0])


LAYOUT: dict[str, Callable[[Setting, Cases, float], float]] = {
    "kv_cache_tokens": lambda *row_facts: logged_cache_tokens(*row_facts),
    "estimated_max_model_len": longest_request,
    "kv_needed_for_max_len": lambda s, cases, _: float(longest_bytes(s, cases)[0]) / GIB,
    "attention_block_size": lambda setting, cases, _: page_tokens(setting, cases),
}
"""Figures that follow from the logged size of the cache, in bytes, wherever it ran."""
