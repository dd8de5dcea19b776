"""A request in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from recipe_core.base.units import count, significant
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.presets import aim_of, aims
from recipe_core.request.schema import PlanRequest, ServingWorkload, TrainingWorkload

_METHODS = {"pretrain": "pre-train", "finetune": "fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


def model_name(request: PlanRequest) -> str:
    """The model in a few characters."""
    named = request.model
    return (
        named.split("/")[-1]
        if isinstance(named, str)
        else str(named.get("_name_or_path") or "inline config")
    )


def hardware_name(hardware: HardwareRequest) -> str:
    """``16 × h100-sxm in 2 nodes``."""
    return f"{hardware.devices:,} × {hardware.device_name}" + (
        f" in {hardware.nodes:,} nodes" if hardware.nodes > 1 else ""
    )


def load_name(workload: ServingWorkload) -> str:
    """The load of a serving workload, by its mode."""
    said: dict[str, Callable[[], str]] = {
        "closed": lambda: f"{workload.concurrency:,} requests in flight",
        "open": lambda: f"{significant(workload.request_rate or 0.0)} requests/s",
        "static": lambda: f"batches of {workload.batch:,}",
        "offline": lambda: f"{workload.requests:,} queued requests",
    }
    return said[workload.mode]()


def workload_name(workload: ServingWorkload | TrainingWorkload) -> str:
    """A workload in a few words."""
    if isinstance(workload, TrainingWorkload):
        budget = f", {count(workload.tokens)} tokens" if workload.tokens else ""
        return f"{_METHODS[workload.method]}, {workload.global_batch:,} × {workload.sequence_length:,} tokens a step{budget}"
    return f"{load_name(workload)}, {workload.input_tokens:,} → {workload.output_tokens:,} tokens"


def summary(request: PlanRequest) -> str:
    """Model, hardware, workload and aim."""
    others = [hardware_name(other) for other in request.options.hardware]
    where = " or ".join([hardware_name(request.hardware), *others])
    aim = aim_of(request)
    goal = aims(request)[aim].title if aim else "weighted goals"
    return f"{model_name(request)} · {where} · {workload_name(request.workload)} · {goal.lower()}"


def steps_of(workload: TrainingWorkload) -> str:
    """The budget in steps."""
    each = workload.global_batch * workload.sequence_length
    if workload.tokens is None:
        return f"A step takes {count(each)} tokens."
    return f"{count(workload.tokens)} tokens in steps of {count(each)}: {math.ceil(workload.tokens / each):,} steps."


def short_name(model: str) -> str:
    """The last part of a model id or folder, as a name for files and requests."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", model.rstrip("/").split("/")[-1]).strip("-.") or "model"
