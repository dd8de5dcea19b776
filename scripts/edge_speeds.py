"""Tokens per second of llama.cpp on edge devices: those that owners publish beside the estimate.

    python scripts/edge_speeds.py

One sequence, 128 tokens after a prompt of 512, as `llama-bench` does by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from recipe_core.plans.plans import plan_splits
from recipe_core.request.schema import PlanRequest

APPLE = "https://github.com/ggml-org/llama.cpp/discussions/4167"
GEERLING = "https://github.com/geerlingguy/ai-benchmarks"  # commit bdf94413
LHL = "https://github.com/lhl/strix-halo-testing"  # commit 5ee14b5b
ORIN = "a log of llama-bench, build 4675, in MAXN"


class Published(NamedTuple):
    """A published run; ``prompt_per_s`` is None where only generation was."""

    device: str
    model: str
    weights: str
    tokens_per_s: float
    prompt_per_s: float | None
    source: str


LLAMA, SMALL = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.2-3B-Instruct"
MIDDLE = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
PUBLISHED = (
    Published("apple-m4-max-128gb", LLAMA, "fp16", 31.64, 922.83, APPLE),
    Published("apple-m4-max-128gb", LLAMA, "int8", 54.05, None, APPLE),
    Published("apple-m4-max-128gb", LLAMA, "int4", 83.06, 885.68, APPLE),
    Published("apple-m3-ultra-512gb", SMALL, "int4", 154.60, None, GEERLING),
    Published("apple-m3-ultra-512gb", MIDDLE, "int4", 51.85, None, GEERLING),
    Published(
        "apple-m3-ultra-512gb", "meta-llama/Llama-3.1-70B-Instruct", "int4", 14.08, None, GEERLING
    ),
    Published("strix-halo-128gb", LLAMA, "int4", 48.72, 348.96, LHL),
    Published("strix-halo-128gb", SMALL, "int4", 88.14, None, GEERLING),
    Published("radeon-ai-pro-r9700", SMALL, "int4", 195.91, None, GEERLING),
    Published("radeon-ai-pro-r9700", MIDDLE, "int4", 53.72, None, GEERLING),
    Published("jetson-agx-orin-64gb", MIDDLE, "int4", 14.49, 455.47, ORIN),
    Published(
        "jetson-agx-orin-64gb",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "int4",
        6.84,
        201.73,
        ORIN,
    ),
)


class Ratio(NamedTuple):
    """Estimated over published speed of tokens and of prompts."""

    run: Published
    tokens: float
    prompt: float | None


def ratios() -> Iterator[Ratio]:
    """The estimate of every run over what was published."""
    for run in PUBLISHED:
        table = plan_splits(PlanRequest.parse(_request(run)))
        serving = table.estimate(int(table.order[0])).serving
        prompt = 512 / serving.ttft_s / run.prompt_per_s if run.prompt_per_s else None
        yield Ratio(run, 1 / serving.tpot_s / run.tokens_per_s, prompt)


def _request(run: Published) -> dict[str, object]:
    return {
        "model": run.model,
        "hardware": {"device": run.device, "per_node": 1},
        "workload": {
            "input_tokens": 512,
            "output_tokens": 128,
            "concurrency": 1,
            "max_context": 1024,
        },
        "options": {
            "engines": ["llama-cpp"],
            "weight_dtypes": [run.weights],
            "kv_dtypes": ["fp16"],
        },
    }


if __name__ == "__main__":
    for ratio in ratios():
        run = ratio.run
        prompt = f", prompt {ratio.prompt:.2f}" if ratio.prompt else ""
        print(f"{run.device:22} {run.model:40} {run.weights:5} {ratio.tokens:.2f}{prompt}")
