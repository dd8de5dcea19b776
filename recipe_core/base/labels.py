"""What a person calls a split, the causes of a time, the parts of a model, the kinds of refusal and a change to a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.units import significant, usd


def degrees(candidate: Mapping[str, Any]) -> str:
    """``tp 4 · dp 2``: tp always, the other degrees when they are more than one."""
    shown = ("tp", "pp", "dp", "ep", "cp")
    return " · ".join(
        f"{name} {candidate[name]}"
        for name in shown
        if name == "tp" or (candidate.get(name) or 1) > 1
    )


def serving_split(candidate: Mapping[str, Any]) -> str:
    """Degrees with copies and the prefill pool where there are any: ``2 × (tp 4), prompts on 3 × tp 2``."""
    copies, pool = candidate.get("replicas") or 1, candidate.get("prefill")
    whole = f"{copies} × ({degrees(candidate)})" if copies > 1 else degrees(candidate)
    if not pool:
        return whole
    number = pool.get("replicas") or 1
    return f"{whole}, prompts on {f'{number} × ' if number > 1 else ''}{degrees(pool)}"


def training_split(candidate: Mapping[str, Any]) -> str:
    """``dp 8 · pp 4 × 2 · zero 1 · micro-batch 2 · full recompute``: degrees above one, and what the states and activations do."""
    c = candidate
    chunks = f" × {c['virtual_stages']}" if c["virtual_stages"] > 1 else ""
    named = {"dp": "", "tp": "", "pp": chunks, "cp": "", "ep": ""}
    cut = [f"{name} {c[name]}{more}" for name, more in named.items() if c[name] > 1] or [
        "one device"
    ]
    part = (
        f" over {c['shard']}" if (c.get("shard") or c["dp"] * c["cp"]) != c["dp"] * c["cp"] else ""
    )
    kept = [f"zero {c['zero_stage']}{part}"] if c["zero_stage"] else []
    again = [f"{c['recompute']} recompute"] if c["recompute"] != "none" else []
    return " · ".join([*cut, *kept, f"micro-batch {c['micro_batch']}", *again])


def split_name(candidate: Mapping[str, Any]) -> str:
    """A candidate of serving or of training in a few characters."""
    return (
        training_split(candidate)
        if candidate.get("micro_batch") is not None
        else serving_split(candidate)
    )


def short_name(candidate: Mapping[str, Any]) -> str:
    """The degrees alone; of two pools those of the decoding one first: ``tp 4 + 2 × tp 2``."""
    if candidate.get("prefill"):
        return serving_split(candidate).replace(", prompts on ", " + ")
    return " · ".join(
        part
        for part in split_name(candidate).split(" · ")
        if part.split()[0] in ("tp", "pp", "dp", "ep", "cp", "one")
    )


_CHANGES = {
    "options.weight_dtypes": lambda value: f"Use {value[0]} weights",
    "options.engines": lambda value: f"Use {value[0]}",
    "candidate.offload": lambda value: f"Keep {value} states on the host",
    "hardware.per_node": lambda value: f"Use {value} devices per node",
    "hardware.nodes": lambda value: f"Use {value} nodes",
    "workload.max_context": lambda value: f"Serve at most {value:,} tokens",
    "workload.input_tokens": lambda value: f"Send prompts of {value:,} tokens",
    "workload.output_tokens": lambda value: f"Answer with {value:,} tokens",
    "workload.concurrency": lambda value: f"Hold {value:,} requests in flight",
    "workload.batch": lambda value: f"Use a batch of {value:,}",
    "workload.request_rate": lambda value: f"Send {significant(value)} requests per second",
    "workload.sequence_length": lambda value: f"Train on {value:,} tokens a sequence",
    "workload.global_batch": lambda value: f"Use a batch of {value:,} sequences",
    "workload.optimizer": lambda value: f"Use {value}",
    "objective.limits.ttft_ms": lambda value: f"Allow {significant(value)} ms to first token",
    "objective.limits.tpot_ms": lambda value: f"Allow {significant(value)} ms per output token",
    "objective.limits.request_latency_ms": lambda value: f"Allow {significant(value)} ms a request",
    "objective.limits.usd_per_hour": lambda value: f"Allow {usd(value)} an hour",
    "objective.limits.usd_per_million_output_tokens": lambda value: (
        f"Allow {usd(value)} per million output tokens"
    ),
    "objective.limits.watts": lambda value: f"Allow {value:,.0f} W",
    "objective.limits.joules_per_token": lambda value: f"Allow {significant(value)} J a token",
    "objective.limits.output_tokens_per_s_at_least": lambda value: (
        f"Ask for {significant(value)} tok/s"
    ),
    "objective.limits.gpus": lambda value: f"Allow {value:,.0f} devices",
}


def change_label(changes: Mapping[str, Any]) -> str:
    """Changes to a request in words: a label for a button. Fields that are taken out along with others go without saying."""
    said = {field: value for field, value in changes.items() if value is not None} or changes
    words = [
        _CHANGES[field](value) if field in _CHANGES else f"Set {field} to {value}"
        for field, value in said.items()
    ]
    return " and ".join([words[0], *(word[0].lower() + word[1:] for word in words[1:])])


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
    "engine-weights": "Engine has no kernels for the weight format",
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
    "attention-dp": "Attention is cut over all ranks or none",
    "no-attention-dp": "Engine has no data-parallel attention",
    "looked-up-drafts": "No looked-up drafts beside ep and dp",
    "pipelined-drafts": "Drafts do not go through a pipeline",
    "one-node": "Engine stays in one node",
    "uneven-nodes": "Ranks would spread unevenly over nodes",
    "packing": "Copies do not pack into the nodes",
    "cache-dtype": "Engine cannot be told the cache format",
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

TRAINING_REFUSALS = {
    "devices": "More devices than there are",
    "precision": "Precision that the device does not multiply",
    "heads": "Attention heads do not divide",
    "hidden": "Hidden size does not divide",
    "width": "Feed-forward width does not divide",
    "layers": "Layers do not fill the pipeline",
    "no-experts": "Model has no experts",
    "experts": "Experts do not divide",
    "expert-ranks": "Ranks do not divide into groups of experts",
    "global-batch": "Batch does not divide",
    "sequence": "Sequence does not divide",
    "virtual-stages": "Chunks do not divide the layers",
    "schedule": "Schedule that does not go with the split",
    "shard": "Shards do not divide the replicas",
    "memory": "Does not fit in memory",
    "host-memory": "Does not fit in the host's memory",
    "limit": "Over a limit of the objective",
}
"""What a person calls the kinds of refusal of training splits."""

TRAINING_MEMORY = {
    "parameters": "Parameters",
    "gradients": "Gradients",
    "optimizer": "Optimizer states",
    "master": "Master copy",
    "reference": "Reference model",
    "gathered": "Gathered units",
    "activations": "Activations",
    "loss": "Logits and loss",
    "temporary": "Temporary buffers",
    "reserve": "Allocator reserve",
}
"""What a person calls the parts of a training device's memory."""

_TRAINING_OPERATORS = {
    "matmul": "products",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "experts",
    "tensor_parallel": "all-reduce (tp)",
    "expert_parallel": "all-to-all (ep)",
    "context_parallel": "ring (cp)",
}
TRAINING_CAUSES = {
    **{f"forward_{name}": f"Forward, {said}" for name, said in _TRAINING_OPERATORS.items()},
    **{f"backward_{name}": f"Backward, {said}" for name, said in _TRAINING_OPERATORS.items()},
    "embedding": "Embedding",
    "head": "Language-model head",
    "loss": "Loss",
    "recompute": "Recomputation",
    "reference": "Reference model",
    "data_loading": "Waiting for data",
    "launch": "Kernel launches",
    "bubble": "Pipeline bubble",
    "pipeline_parallel": "Pipeline hand-over (pp)",
    "data_parallel": "Gradients and parameters (dp)",
    "optimizer": "Optimizer",
    "fixed": "Start of a step",
    "stragglers": "Stragglers",
}
"""What a person calls the parts of a training step."""

WHY = {
    "compute": "Compute",
    "memory": "Memory traffic",
    "network": "Network",
    "overhead": "Overhead",
    "queue": "Waiting",
}
"""What a person calls the causes that all parts of a time are laid on."""
