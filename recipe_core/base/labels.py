"""Labels for people: of splits, parts of a time, parts of a model, refusals and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipe_core.base.units import significant, usd


def degrees(candidate: Mapping[str, Any]) -> str:
    """``tp 4 · dp 2``: tp always, the other degrees when above 1."""
    return " · ".join(
        f"{name} {candidate[name]}"
        for name in ("tp", "pp", "dp", "ep", "cp")
        if name == "tp" or (candidate.get(name) or 1) > 1
    )


def serving_split(candidate: Mapping[str, Any]) -> str:
    """Degrees, copies, draft and the prefill pool: ``2 × (tp 4), prefill on 3 × tp 2``.

    A draft is its method, tokens and acceptance: ``tp 8, eagle 5 at 0.7``.
    """
    copies, pool = candidate.get("replicas") or 1, candidate.get("prefill")
    split = f"{copies} × ({degrees(candidate)})" if copies > 1 else degrees(candidate)
    if draft := candidate.get("speculative"):
        split += f", {draft.get('method') or 'draft'} {draft['tokens']} at {draft['acceptance']:g}"
    if not pool:
        return split
    number = pool.get("replicas") or 1
    return f"{split}, prefill on {f'{number} × ' if number > 1 else ''}{degrees(pool)}"


def training_split(candidate: Mapping[str, Any]) -> str:
    """``dp 8 · pp 4 × 2 · zero 1 · micro-batch 2 · full recompute``: what is not 1 or none."""
    c = candidate
    chunks = f" × {c['virtual_stages']}" if c["virtual_stages"] > 1 else ""
    suffixes = {"dp": "", "tp": "", "pp": chunks, "cp": "", "ep": ""}
    parts = [f"{name} {c[name]}{end}" for name, end in suffixes.items() if c[name] > 1]
    parts = parts or ["one device"]
    replicas = c["dp"] * c["cp"]
    if c["zero_stage"]:
        hybrid = f" over {c['shard']}" if (c.get("shard") or replicas) != replicas else ""
        parts.append(f"zero {c['zero_stage']}{hybrid}")
    parts.append(f"micro-batch {c['micro_batch']}")
    if c["recompute"] != "none":
        parts.append(f"{c['recompute']} recompute")
    if c.get("offload") == "parameters":
        parts.append("parameters on the host")
    return " · ".join(parts)


def split_name(candidate: Mapping[str, Any]) -> str:
    """A candidate of serving or of training in a few characters."""
    training = candidate.get("micro_batch") is not None
    return training_split(candidate) if training else serving_split(candidate)


def short_name(candidate: Mapping[str, Any]) -> str:
    """A split in a tile: of two pools ``tp 4 + 2 × tp 2``, of training ``dp 8 · zero 3 · mb 8``.

    ``mb`` is the micro-batch. Everything that tells splits apart stays.
    """
    if candidate.get("prefill"):
        return serving_split(candidate).replace(", prefill on ", " + ")
    return split_name(candidate).replace("micro-batch", "mb")


_LOADS = {
    "concurrency": "in flight",
    "batch": "in a batch",
    "requests": "queued",
    "request_rate": "requests/s",
}


def load_text(field: str, load: float) -> str:
    """A load with what it counts, by the workload's field: ``64 in flight``, ``2.5 requests/s``."""
    number = f"{load:,.0f}" if float(load).is_integer() else significant(load)
    return f"{number} {_LOADS[field]}"


_METHODS = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
}

_DATA = {"text": "texts", "chat": "chats", "preference": "preferences"}

_CHANGES: Mapping[str, Callable[[Any], str]] = {
    "options.weight_dtypes": lambda value: f"Use {value[0]} weights",
    "options.engines": lambda value: f"Use {value[0]}",
    "candidate.stream_interval": lambda value: f"Stream tokens {value} at a time",
    "candidate.scheduler_recv_interval": lambda value: (
        "Check for requests in every step"
        if value == 1
        else f"Check for requests every {value:,} steps"
    ),
    "candidate.batch_window_ms": lambda value: f"Wait {significant(value)} ms to fill a batch",
    "candidate.instances": lambda value: f"Run {value:,} instances a device",
    "candidate.offload": lambda value: (
        f"Keep {value} in host memory"
        if value == "parameters"
        else f"Keep {value} states in host memory"
    ),
    "candidate.engine": lambda value: f"Train with {value}",
    "workload.method": lambda value: f"Use {_METHODS.get(value, value)}",
    "workload.data_format": lambda value: f"Train on {_DATA.get(value, value)}",
    "workload.tokens": lambda value: f"Train on {value:,.0f} tokens",
    "workload.phases": lambda _: "Train without phases",
    "workload.document_tokens": lambda _: "Leave the length of documents out",
    "hardware.per_node": lambda value: f"Use {value} devices per node",
    "hardware.nodes": lambda value: f"Use {value} nodes",
    "workload.max_context": lambda value: f"Serve at most {value:,} tokens",
    "workload.input_tokens": lambda value: f"Send prompts of {value:,} tokens",
    "workload.output_tokens": lambda value: f"Generate {value:,} tokens",
    "workload.concurrency": lambda value: f"Keep {value:,} requests in flight",
    "workload.batch": lambda value: f"Use a batch of {value:,}",
    "workload.request_rate": lambda value: f"Send {significant(value)} requests per second",
    "workload.sequence_length": lambda value: f"Train on sequences of {value:,} tokens",
    "workload.global_batch": lambda value: f"Use a global batch of {value:,} sequences",
    "workload.optimizer": lambda value: f"Use {value}",
    "objective.limits.ttft_ms": lambda value: f"Allow {significant(value)} ms to first token",
    "objective.limits.tpot_ms": lambda value: f"Allow {significant(value)} ms per output token",
    "objective.limits.request_latency_ms": lambda value: (
        f"Allow {significant(value)} ms per request"
    ),
    "objective.limits.usd_per_hour": lambda value: f"Allow {usd(value)} per hour",
    "objective.limits.usd_per_million_output_tokens": lambda value: (
        f"Allow {usd(value)} per million output tokens"
    ),
    "objective.limits.usd": lambda value: f"Allow {usd(value)} for the run",
    "objective.limits.wall_hours": lambda value: f"Allow {significant(value)} h to finish",
    "objective.limits.watts": lambda value: f"Allow {value:,.0f} W",
    "objective.limits.joules_per_token": lambda value: f"Allow {significant(value)} J per token",
    "objective.limits.output_tokens_per_s_at_least": lambda value: (
        f"Require only {significant(value)} tok/s"
    ),
    "objective.limits.gpus": lambda value: f"Allow {value:,.0f} devices",
    "objective.limits.accuracy_recovery": lambda value: (
        f"Require only {significant(value * 100)} % of the accuracy"
    ),
    "options.kv_dtypes": lambda value: f"Keep the cache in {value[0]}",
}


def change_label(changes: Mapping[str, Any]) -> str:
    """Changes to a request as the label of a button.

    Fields that are removed along with other changes are not mentioned.
    """
    shown = {field: value for field, value in changes.items() if value is not None} or changes
    words = [
        _CHANGES[field](value) if field in _CHANGES else f"Set {field} to {value}"
        for field, value in shown.items()
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
    "pipeline": "Pipeline send/receive (pp)",
    "options": "Own options: adapters, weights in host memory",
    "engine": "Engine overhead",
    "encoder": "Vision and audio encoders",
    "prefill_interference": "Prefills of other requests",
    "schedule": "Waiting for a step",
    "request": "Request handling",
    "prompts_ahead": "Prompts ahead",
    "engine_queue": "Waiting in the engine's queue",
    "window": "Waiting for a batch to fill",
    "receive": "Until the scheduler checks for requests",
    "stream": "Until tokens are streamed",
    "draft": "Draft model",
    "transfer": "KV cache transfer to the decode pool",
    "handoff": "Hand-off between pools",
    "kv_load": "Cached blocks from host or store",
    "kv_copies": "Steps that wait for cached blocks",
}
"""Labels of the parts of a serving time."""

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
    "image_experts": "Experts of image tokens",
    "vision encoder": "Vision encoder",
    "audio encoder": "Audio encoder",
}
"""Labels of the parts of a model."""

REFUSALS = {
    "devices": "More devices than available",
    "runtime": "Engine does not run on the device",
    "weight-dtype": "No kernels for the weight format",
    "engine-weights": "Engine has no kernels for the weight format",
    "engine-kernels": "Engine's release refuses the model on this device",
    "uneven-experts": "Experts not divisible over ranks",
    "stated-cache": "Stated cache holds no request",
    "claim": "Engine claims memory that is not free",
    "emulated": "Engine only emulates the format",
    "engine-technique": "Engine refuses the technique",
    "kv-dtype": "KV cache format not supported",
    "heads": "Attention heads not divisible",
    "kv-heads": "KV heads not divisible",
    "idle-replicas": "Replicas would idle",
    "idle-stages": "Pipeline stages would idle",
    "output-groups": "Output projection groups not divisible",
    "layers": "Too few layers for the pipeline",
    "context": "Longer than the model's context",
    "task": "Engine does not make what is asked for",
    "whole-prompts": "Prompts run whole and exceed a step",
    "width": "Feed-forward width not divisible",
    "block": "Quantisation blocks would be cut",
    "no-tensor": "Engine has no tensor parallelism",
    "no-pipeline": "Engine has no pipeline parallelism",
    "no-experts": "Model has no experts",
    "experts": "Too few experts",
    "no-expert-parallel": "Engine has no expert parallelism",
    "ep-divides": "Ranks not divisible by ep",
    "ep-ranks": "Engine shares experts over all ranks",
    "no-context": "Engine has no context parallelism",
    "cp-divides": "KV head copies not divisible by cp",
    "cp-cache": "Cache cannot be shared between ranks",
    "no-pools": "Engine has no prefill pools",
    "no-drafts": "Engine has no speculative decoding",
    "attention-dp": "Attention is either tensor- or data-parallel",
    "no-attention-dp": "Engine has no data-parallel attention",
    "looked-up-drafts": "No prompt-lookup drafts with data-parallel attention",
    "pipelined-drafts": "No speculative decoding with a pipeline",
    "one-node": "Engine cannot span nodes",
    "uneven-nodes": "Ranks cannot be spread evenly over nodes",
    "packing": "Servers do not fit into the nodes",
    "cache-dtype": "Engine has no flag for the cache format",
    "memory": "Does not fit in memory",
    "batch": "Batch does not fit in memory",
    "rate": "Requests arrive faster than they are served",
    "kv-offload": "Cache cannot be offloaded this way",
    "kv-offload-pools": "No offloading beside a prefill pool",
    "kv-link": "Cached blocks load too slowly",
    "host-memory": "Does not fit in the host's memory",
    "limit-ttft": "Over the limit on time to first token",
    "limit-usd-tokens": "Over the limit on cost per token",
    "limit-energy": "Over the limit on energy",
    "limit-watts": "Over the limit on power",
    "limit-throughput": "Under the required throughput",
    "limit-accuracy": "Keeps too little accuracy",
    "limit-tpot": "Over the limit on time per output token",
    "limit-latency": "Over the limit on request latency",
    "limit-usd": "Over the limit on cost",
    "limit-usd-run": "Over the limit on the cost of the run",
    "limit-wall": "Over the limit on time to finish",
    "limit-gpus": "Over the limit on devices",
    "unsimulated": "Percentile not simulated",
    "confidence": "Too likely to miss a limit",
}
"""Labels of the refusals of serving splits, by code."""

TRAINING_REFUSALS = {
    "devices": "More devices than available",
    "precision": "Device does not support the precision",
    "attention": "Device does not run the attention kernel",
    "fp8-recipe": "8-bit recipe does not go with the run",
    "cuda-graphs": "Graphs do not go with the run",
    "compile": "Framework does not compile models",
    "heads": "Attention heads not divisible",
    "hidden": "Hidden size not divisible",
    "width": "Feed-forward width not divisible",
    "layers": "Too few layers for the pipeline",
    "no-experts": "Model has no experts",
    "experts": "Experts not divisible",
    "expert-ranks": "Ranks not divisible by ep",
    "global-batch": "Batch not divisible",
    "dualpipe": "DualPipe does not fit the pipeline",
    "sequence": "Sequence not divisible",
    "virtual-stages": "Chunks without a pipeline",
    "schedule": "Schedule cannot run the split",
    "shard": "Replicas not divisible by shard",
    "offload": "Parameters cannot wait in host memory",
    "memory": "Does not fit in memory",
    "host-memory": "Does not fit in the host's memory",
    "rollout": "Answers cannot be sampled beside it",
    "time-limit": "No checkpoint within the time limit",
    "framework": "Framework cannot launch what is asked",
    "launch-degree": "Framework does not launch the degree",
    "launch-nodes": "Devices do not fill whole nodes",
    "launch-sharding": "Framework does not launch the ZeRO stage",
    "launch-recompute": "Framework does not launch the recomputation",
    "launch-schedule": "Framework lacks the pipeline schedule",
    "launch-gradients": "Framework exchanges gradients otherwise",
    "launch-pipeline": "Framework does not launch the pipeline",
    "launch-tensor": "Framework does not cut the model this way",
    "launch-experts": "Framework does not share experts this way",
    "launch-rollout": "Framework does not sample this way",
    "launch-adapters": "Framework does not train such adapters",
    "launch-activation": "Framework keeps activations on the device",
    "launch-batch": "Framework does not take the batch",
    "launch-weights": "Weights do not divide into 4-bit blocks",
    "launch-host": "Whole models exceed the host's memory while they are loaded",
    "launch-context": "Framework does not cut contexts this way",
    "launch-offload": "Framework does not move states this way",
    "launch-moments": "Framework keeps moments otherwise",
    "launch-predictions": "Framework does not launch multi-token prediction this way",
    "launch-overlap": "Framework does not overlap the exchange of tokens",
    "launch-pairs": "Pairs of answers are not divided",
    "launch-precision": "Framework does not launch the precision",
    "launch-sequence": "Framework does not cut sequences this way",
    "limit": "Over a limit of the objective",
    "confidence": "Too likely to miss a limit",
}
"""Labels of the refusals of training splits, by code."""

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
"""Labels of the parts of a training device's memory."""

_TRAINING_OPERATORS = {
    "matmul": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "experts",
    "dequantize": "4 to 16 bits",
    "tensor_parallel": "all-reduce (tp)",
    "expert_parallel": "all-to-all (ep)",
    "context_parallel": "ring (cp)",
}
RUN_SHARES = {
    "steps": "Steps (goodput)",
    "slow_nodes": "Slow nodes",
    "evaluation": "Evaluations",
    "checkpoints": "Checkpoints",
    "lost_work": "Work done again",
    "restarts": "Restarts",
    "waiting": "Waiting for nodes",
    "time_limits": "Ends at the time limit",
}
"""What takes the time of a training run, by the fields of its shares."""

REINFORCEMENT_PHASES = {
    "rollout": "Rollout",
    "old_log_probs": "Own log-probabilities",
    "reference": "Reference model",
    "rewards": "Rewards",
    "values": "Critic's values",
    "critic": "Update of the critic",
    "update": "Update",
    "weight_sync": "Weights to the engine",
    "state_moves": "States to the host and back",
}
"""Labels of the phases of a step of reinforcement learning, in their order."""

TRAINING_CAUSES = {
    **{f"forward_{name}": f"Forward, {label}" for name, label in _TRAINING_OPERATORS.items()},
    **{f"backward_{name}": f"Backward, {label}" for name, label in _TRAINING_OPERATORS.items()},
    "embedding": "Embedding",
    "head": "Language-model head",
    "loss": "Loss",
    "recompute": "Recomputation",
    "reference": "Reference model",
    "data_loading": "Waiting for data",
    "launch": "Kernel launches",
    "bubble": "Pipeline bubble",
    "pipeline_parallel": "Pipeline send/receive (pp)",
    "data_parallel": "Gradients and parameters (dp)",
    "host_parameters": "Parameters from host memory",
    "optimizer": "Optimizer",
    "fixed": "Fixed time per step",
    "stragglers": "Stragglers",
    **{name: label for name, label in REINFORCEMENT_PHASES.items() if name != "update"},
}
"""Labels of the parts of a training step."""

WHY = {
    "compute": "Compute",
    "memory": "Memory traffic",
    "network": "Network",
    "overhead": "Overhead",
    "queue": "Waiting",
}
"""Labels of the bottlenecks that every part of a time is attributed to."""
