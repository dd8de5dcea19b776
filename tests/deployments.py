"""Random deployments that no rule refuses, with pools and drafts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from recipe_core.engines.spec import engine
from recipe_core.launch.process import Candidate, Deployment
from recipe_core.request.candidate import CandidateRequest
from recipe_core.search.problem import ServingProblem, resolve
from recipe_core.search.serving_candidates import describe, every_split, one_case, setting
from recipe_core.space.rules import refusals
from recipe_core.space.serving import Cases, Setting
from tests.conftest import make_request

MODELS = (
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B-FP8",
    "deepseek-ai/DeepSeek-V3",
)
EMBEDDING = ("BAAI/bge-m3", "Qwen/Qwen3-Embedding-0.6B", "BAAI/bge-reranker-v2-m3")
"""What engines are asked for that make no text."""
DEVICES = {
    "cuda": ("h100-sxm", "b200-sxm", "gb200", "l40s"),
    "rocm": ("mi300x", "mi355x"),
    "xpu": ("arc-pro-b60",),
    "metal": ("apple-m3-ultra-512gb",),
    "cpu": ("cpu",),
}
ALONE = (*DEVICES["metal"], *DEVICES["cpu"])
"""Devices of which a machine has one."""
SIZES = ((8, 1), (4, 2), (8, 2), (8, 4))
DRAFT_CHECKPOINT = "example/Model-EAGLE3"


@cache
def legal(
    model: str, name: str, device: str, per_node: int, nodes: int, weights: str, cache_dtype: str
) -> tuple[ServingProblem, Setting, Cases]:
    """Every split that no rule refuses."""
    problem: ServingProblem = resolve(
        make_request(model, device, per_node, nodes, options={"context_parallel": True})
    )
    settings = setting(problem, engine(name), weights, cache_dtype)
    splits = every_split(problem, settings)
    fine = np.ones(len(splits), dtype=bool)
    for rule in refusals(settings, splits):
        fine &= ~rule.broken
    return problem, settings, splits.take(np.flatnonzero(fine))


def models_of(name: str) -> tuple[str, ...]:
    """Models that an engine can be asked for."""
    return MODELS if "generate" in engine(name).tasks else EMBEDDING


def deployments(name: str, count: int, seed: int = 0) -> Iterator[Deployment]:
    """``count`` deployments of an engine; the same for the same seed."""
    draw, spec = random.Random(seed), engine(name)
    while count:
        device = draw.choice([d for runtime in spec.runtimes for d in DEVICES[runtime]])
        per_node, nodes = (1, 1) if device in ALONE else draw.choice(SIZES)
        weights, cache_dtype = (
            draw.choice(("auto", "auto", "fp8", "fp16")),
            draw.choice(("auto", "auto", "fp8")),
        )
        problem, settings, splits = legal(
            draw.choice(models_of(name)), name, device, per_node, nodes, weights, cache_dtype
        )
        if not len(splits) or settings.needs_other_checkpoint:
            continue
        drawn = _deployment(draw, problem, settings, splits)
        if drawn is not None:
            yield drawn
            count -= 1


def _deployment(
    draw: random.Random, problem: ServingProblem, settings: Setting, splits: Cases
) -> Deployment | None:
    """One of the splits with limits, pools and drafts; None where a rule refuses those."""
    values = describe(settings, splits, np.array([draw.randrange(len(splits))]))[0]
    values |= {
        "max_num_seqs": draw.choice((1, 17, 256, 1024)),
        "max_batched_tokens": draw.choice((2048, 3001, 8192, 16384)),
        "memory_fraction": draw.choice((0.5, 0.8, 0.9, 0.95)),
    }
    if draw.random() < 0.3 and settings.engine.split.disaggregated and settings.cluster.devices > 1:
        values |= _pools(draw, settings, splits)
    if draw.random() < 0.3 and settings.engine.split.speculative:
        methods = ("eagle", "ngram", "mtp") if settings.model.draft_layers else ("eagle", "ngram")
        values["speculative"] = {
            "tokens": draw.choice((1, 3)),
            "acceptance": 0.7,
            "method": draw.choice(methods),
            "model": DRAFT_CHECKPOINT,
        }
    exact = one_case(problem, CandidateRequest.model_validate(values))
    if exact is None or any(rule.broken[0] for rule in refusals(*exact)):
        return None
    context = draw.choice((2048, 4096, 8191))
    return Deployment(
        settings, Candidate(**values), context, context * draw.choice((1, 16, 300)), "m"
    )


def _pools(draw: random.Random, settings: Setting, splits: Cases) -> dict[str, Any]:
    """A decoding and a prefill split that share the cluster, each as often as still fits."""
    devices = settings.cluster.devices
    units = [
        n for n in range(len(splits)) if splits.devices[n] <= devices // 2 and splits.cp[n] == 1
    ]
    decode, prefill = (
        describe(settings, splits, np.array([draw.choice(units)]))[0] for _ in range(2)
    )
    sizes = [pool["tp"] * pool["pp"] * pool["dp"] for pool in (decode, prefill)]
    replicas = draw.randint(1, (devices - sizes[1]) // sizes[0])
    prefill_copies = draw.randint(1, (devices - replicas * sizes[0]) // sizes[1])
    return decode | {
        "replicas": replicas,
        "prefill": {k: prefill[k] for k in ("tp", "pp", "dp", "ep")} | {"replicas": prefill_copies},
    }
