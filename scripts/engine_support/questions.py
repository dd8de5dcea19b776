"""Questions to engines: kinds of attention, formats of weights, shares that cut groups.

A question names a model of ``models.yaml`` (public config.json files at their true widths, cut to
a few layers), a format of ``formats.yaml`` (None: the model's own), a tensor-parallel size and a
format of the cache. Its kind and subject are what ``recipe_core.engines.support`` looks up.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
FORMATS = yaml.safe_load((HERE / "formats.yaml").read_text(encoding="utf-8"))
MODELS = yaml.safe_load((HERE / "models.yaml").read_text(encoding="utf-8"))
HEADS = (64, 72, 80, 96, 112, 128, 160, 192, 256, 512)
CACHES = ("auto", "fp8", "nvfp4")
KINDS = {
    "mla": ("DeepSeek-V3",),
    "sparse-mla": ("DeepSeek-V3.2", "GLM-5"),
    "delta": ("Qwen3-Next-80B",),
    "kda": ("Kimi-Linear-48B",),
    "mamba": ("Nemotron-H-8B",),
    "mamba1": ("Falcon-Mamba-7B",),
    "conv": ("LFM2-1.2B",),
    "gqa 64 sinks": ("gpt-oss-120b",),
    "gqa 128": ("Llama-3.1-8B",),
}
"""Models that stand for a kind of attention, asked with 16-bit weights."""
CUTS = {
    "fp8-block": (4, 4),
    "awq-g128": (2, 4),
    "gptq-g128": (2, 4),
    "ct-int4-g128": (2, 4),
    "modelopt-nvfp4": (16, 32),
    "ct-nvfp4": (16, 32),
    "quark-mxfp4": (8, 16),
}
"""Ranks over which a width of 29,568, and experts of 768, are cut within a group or block."""


class Question(NamedTuple):
    """A question, and the model it is asked with."""

    kind: str
    subject: str
    model: str
    form: str | None
    tp: int = 1
    cache: str = "auto"


def selections():
    """Kind, subject and wishes of every question that goes to the attention selector alone."""
    for cache in CACHES:
        for size in HEADS:
            yield f"gqa {size} {cache}", {"head_size": size, "kv_cache_dtype": cache}
        window = {"head_size": 128, "kv_cache_dtype": cache, "has_sliding_window": True}
        yield f"gqa 128 window {cache}", window
    yield "encoder 64 auto", {"head_size": 64, "attn_type": "encoder_only"}
    yield "cross 64 auto", {"head_size": 64, "attn_type": "encoder_decoder"}


def questions():
    """Every question that a model is built for."""
    for kind, models in KINDS.items():
        for model in models:
            for cache in CACHES:
                yield Question("attention", f"{kind} {cache}", model, "bf16", 1, cache)
    # Its weights are part of what is asked: its experts have kernels of their own.
    for cache in ("auto", "fp8"):
        yield Question("attention", f"compressed {cache}", "DeepSeek-V4-Flash", None, 1, cache)
    for model in ("gemma-2-27b", "gemma-3-27b"):
        yield Question("model", MODELS[model]["model_type"], model, None)
    for form in FORMATS:
        yield Question("weights", f"dense {form}", "Llama-3.1-8B", form)
        yield Question("weights", f"experts {form}", "Qwen3-30B-A3B", form)
    yield Question("weights", "experts mxfp4", "gpt-oss-120b", None)
    for form, (dense, experts) in CUTS.items():
        yield Question("cut", f"dense {form}", "Qwen2-72B", form, dense)
        yield Question("cut", f"experts {form}", "Qwen3-30B-A3B", form, experts)
    yield Question("cut", "experts mxfp4", "gpt-oss-120b", None, 8)
