"""A request in one line."""

from __future__ import annotations

import re

from recipe_core.base.errors import HardwareError
from recipe_core.base.units import count_text, significant
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.presets import aims, request_aim
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.training_workload import TrainingWorkload
from recipe_core.request.variation import variation_text

# Methods of training, as people call them.
METHODS = {
    "pretrain": "pre-train",
    "finetune": "fine-tune",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
}


def model_name(request: PlanRequest) -> str:
    """The model without its owner: ``Qwen3-8B``."""
    model = request.model
    if isinstance(model, str):
        return model.split("/")[-1]
    name = str(model.get("name") or model.get("_name_or_path") or "inline config")
    return name.rstrip("/").split("/")[-1]


def hardware_name(hardware: HardwareRequest) -> str:
    """``16 × H100 SXM5 in 2 nodes``; a device that nobody knows by what it is called."""
    nodes = f" in {hardware.nodes:,} nodes" if hardware.nodes > 1 else ""
    try:
        title = chip_title(device_profile(hardware.device))
    except HardwareError:
        title = hardware.device_name
    return f"{hardware.devices:,} × {title}{nodes}"


def load_name(workload: ServingWorkload) -> str:
    match workload.mode:
        case "closed":
            if workload.concurrency is None:
                return "as many users as the limits allow"
            return f"{workload.concurrency:,} users at once"
        case "open":
            return f"{significant(workload.request_rate or 0.0)} requests a second"
        case "static":
            return f"batches of {workload.batch:,}"
        case "offline":
            return f"{workload.requests:,} queued requests"


def workload_name(workload: ServingWorkload | TrainingWorkload) -> str:
    """A workload in a few words."""
    if isinstance(workload, TrainingWorkload):
        step = f"{workload.global_batch:,} × {workload.sequence_length:,} tokens per step"
        if (work := workload.rollout) is not None:
            answers = f"{work.samples:,} answers of {work.response_tokens:,} tokens"
            step = f"{work.prompts:,} prompts × {answers} per step"
        budget = f", {count_text(workload.tokens)} tokens" if workload.tokens else ""
        adapters = " with LoRA" if workload.adapters else ""
        return f"{METHODS[workload.method]}{adapters}, {step}{budget}"
    lengths = f"{workload.input_tokens:,} → {workload.output_tokens:,} tokens"
    return f"{load_name(workload)}, {lengths}{media_name(workload)}"


def lengths_text(workload: ServingWorkload | TrainingWorkload) -> str:
    """Say how long requests are, or what a step of training holds (tokens)."""
    if isinstance(workload, ServingWorkload):
        longest = workload.max_context or workload.usual_longest
        lengths = f"{workload.input_tokens:,} tokens in, {workload.output_tokens:,} out"
        return f"Typical request: {lengths}{variation_text(workload)}; the longest: {longest:,}"
    if (work := workload.rollout) is None:
        batch = f"{workload.global_batch:,} sequences"
        return f"Each step: {batch} of {workload.sequence_length:,} tokens"
    answers = f"{work.prompts:,} prompts × {work.samples:,} answers of {work.response_tokens:,}"
    return f"Each step: {answers} tokens; the longest: {work.longest_response:,}"


def media_name(workload: ServingWorkload) -> str:
    """Images and sound of a prompt in a few words; empty where it is text."""
    parts = (("images", workload.images), ("pieces of sound", workload.audio))
    return "".join(
        f", {part.per_request:g} {name} of {part.tokens:,} tokens"
        for name, part in parts
        if part is not None
    )


def request_summary(request: PlanRequest) -> str:
    """Model, hardware, workload and aim."""
    return asked_summary(request, hardware=True)


def asked_summary(request: PlanRequest, *, hardware: bool) -> str:
    """The same; without ``hardware`` that is to be found."""
    clusters = (request.hardware, *request.options.hardware)
    where = " or ".join(hardware_name(cluster) for cluster in clusters)
    where = where if hardware else "hardware to be found"
    aim = request_aim(request)
    goal = aims(request)[aim].title if aim else "weighted goals"
    return f"{model_name(request)} · {where} · {workload_name(request.workload)} · {goal.lower()}"


def limits_summary(request: PlanRequest) -> str:
    """The limits in a few words, ``TPOT ≤ 40.0 ms``, or that there are none."""
    limits = request.objective.limits
    texts = [
        f"{limit.metric.abbreviation} {'≥' if limit.at_least else '≤'} {limit.show(bound)}"
        for limit in limits_by_name().values()
        if (bound := limit.bound(limits)) is not None
    ]
    return ", ".join(texts) or "none stated"


def training_steps_text(workload: TrainingWorkload) -> str:
    """The budget in steps."""
    per_step, steps = count_text(workload.step_tokens), workload.steps
    if workload.tokens is None or steps is None:
        return f"A step takes {per_step} tokens."
    if workload.phases:
        n = len(workload.phases)
        parts = f"{n} phases" if n > 1 else "one phase"
    else:
        parts = f"steps of {per_step}"
    return f"{count_text(workload.tokens)} tokens in {parts}: {steps:,} steps."


def model_short_name(model: str) -> str:
    """The last part of a model id or folder, as a name for files and requests."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", model.rstrip("/").split("/")[-1]).strip("-.") or "model"
