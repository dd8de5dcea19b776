"""What a person calls a split, the causes of a time, the parts of a model and the kinds of refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.plan import PlanTable


def degrees(candidate: Mapping[str, Any]) -> str:
    """``tp 4 · dp 2``: tp always, the other degrees when they are more than one."""
    named = [f"{name} {candidate[name]}" for name in ("tp", "pp", "dp", "ep") if name == "tp" or candidate[name] > 1]
    return " · ".join(named)


def unit(table: PlanTable) -> str:
    """What one device is called: a GPU, or a machine where the processor computes."""
    return "machine" if table.found.cluster.device.runtime == "cpu" else "GPU"


def split_label(table: PlanTable, row: int) -> str:
    """The degrees, and engine or dtypes where the plan has several."""
    candidate = table.candidate(row)
    settings = [block.setting for block in table.blocks]
    extra = [
        candidate[name]
        for name, values in (
            ("engine", {s.engine.name for s in settings}),
            ("weight_dtype", {s.weight_dtype for s in settings}),
        )
        if len(values) > 1
    ]
    if len({s.kv_dtype for s in settings}) > 1:
        extra.append(f"{candidate['kv_dtype']} cache")
    return " · ".join([degrees(candidate), *extra])


CAUSES = {
    "qkv": "Query, key, value projections",
    "o": "Output projection",
    "attention": "Attention",
    "indexer": "Sparse indexer",
    "launch": "Kernel launches",
    "mlp": "Feed-forward",
    "router": "Expert router",
    "experts": "Experts",
    "shared_experts": "Shared experts",
    "all_reduce": "All-reduce (tp)",
    "all_to_all": "All-to-all (ep)",
    "context": "Shared cache (cp)",
    "norms": "Norms and residuals",
    "embedding": "Embedding",
    "head": "Language-model head",
    "pipeline": "Pipeline hand-over (pp)",
    "engine": "Engine overhead",
    "prefill_interference": "Prefills of other requests",
    "schedule": "Wait for a step",
    "request": "Request handling",
    "prompts_ahead": "Prompts ahead",
    "engine_queue": "Wait in the engine's queue",
    "draft": "Drafts",
    "transfer": "Cache transfer to the decode pool",
    "handoff": "Hand-over between pools",
}
"""What a person calls the causes of an estimate's breakdown."""

PARTS = {
    "attention.q": "Query",
    "attention.q_a": "Query, down",
    "attention.q_b": "Query, up",
    "attention.kv": "Key and value",
    "attention.kv_a": "Key and value, down",
    "attention.kv_b": "Key and value, up",
    "attention.o": "Attention output",
    "attention.bias": "Attention biases",
    "mlp": "Feed-forward",
    "moe.experts": "Experts",
    "moe.shared": "Shared experts",
    "moe.bias": "Expert biases",
    "moe.router": "Router",
    "embedding": "Embedding",
    "head": "Language-model head",
    "norm": "Norms",
}
"""What a person calls the parts of a model."""

REFUSALS = {
    "devices": "More devices than there are",
    "runtime": "Engine does not run on the device",
    "weight-dtype": "No kernels for the weight format",
    "kv-dtype": "No kernels for the cache format",
    "heads": "Attention heads do not divide",
    "kv-heads": "KV heads do not divide",
    "idle-replicas": "Replicas would have nothing to do",
    "idle-stages": "Stages of the pipeline would idle",
    "output-groups": "Groups of the output projection do not divide",
    "layers": "Too few layers for the pipeline",
    "context": "Longer than the model's context",
    "width": "Feed-forward width does not divide",
    "block": "Quantisation blocks do not divide",
    "no-tensor": "Engine has no tensor parallelism",
    "no-pipeline": "Engine has no pipeline parallelism",
    "no-experts": "Model has no experts",
    "experts": "Too few experts",
    "no-expert-parallel": "Engine has no expert parallelism",
    "ep-divides": "Experts do not divide over the ranks",
    "ep-ranks": "Engine shares experts over all ranks",
    "no-context": "Engine does not share caches",
    "cp-divides": "Ranks that share a cache do not divide",
    "cp-cache": "Cache that ranks cannot share",
    "no-pools": "Engine has no prefill pools",
    "no-drafts": "Engine does not verify drafts",
    "memory": "Does not fit in memory",
    "batch": "The batch does not fit in memory",
    "rate": "Requests arrive faster than served",
    "limit-ttft": "Over the limit on time to first token",
    "limit-usd-tokens": "Over the limit on cost per token",
    "limit-energy": "Over the limit on energy",
    "limit-watts": "Over the limit on power",
    "limit-throughput": "Under the least throughput",
    "limit-tpot": "Over the limit on time per output token",
    "limit-latency": "Over the limit on request latency",
    "limit-usd": "Over the limit on cost",
    "limit-gpus": "Over the limit on devices",
    "unsimulated": "Percentile not simulated",
}
"""What a person calls the kinds of refusal."""
