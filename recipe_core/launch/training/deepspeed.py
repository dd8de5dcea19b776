"""DeepSpeed: ZeRO over replicas, by its launcher, with all that was estimated in its config."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.launch.process import Launch
from recipe_core.launch.training.embedded import launch_hf_trainer
from recipe_core.launch.training.job import Job

_OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "muon": "Muon"}


def launch_deepspeed(job: Job) -> Launch:
    """DeepSpeed's launcher on every node, without ssh; transformers' trainer runs under it."""
    config = ds_config(job)
    sizes = ("--num_nodes", str(job.nodes), "--num_gpus", str(job.processes_per_node))
    meeting = ("--master_addr", "${head}", "--master_port", "${port}", "--no_ssh")
    start, option = ("deepspeed", *sizes, *meeting), ("--deepspeed", "${root}/ds_config.json")
    files = {"ds_config.json": to_json(config)}
    return launch_hf_trainer(
        job, {"deepspeed": config}, files, lambda node: (*start, "--node_rank", str(node)), *option
    )


def ds_config(job: Job) -> dict[str, Any]:
    """DeepSpeed's own file; it checks that the three batch sizes agree."""
    h, half = job.hyper, job.setting.precision
    optimizer = {
        # a tool's own is not of this file
        "type": _OPTIMIZERS.get(job.setting.optimizer_name, "AdamW"),
        "params": {
            "lr": h.learning_rate,
            "betas": [h.beta1, h.beta2],
            **({} if job.setting.optimizer_name == "lion" else {"eps": h.epsilon}),
            "weight_decay": h.weight_decay,
        },
    }
    schedule = {
        "type": "WarmupCosineLR",
        "params": {
            "total_num_steps": job.steps,
            "warmup_num_steps": h.warmup_steps,
            "warmup_min_ratio": 0.0,
            "cos_min_ratio": h.least_rate_share,
        },
    }
    zero: dict[str, Any] = {
        "stage": job.zero_stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
    }
    if job.offload in ("optimizer", "parameters"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if job.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_batch_size": job.dims.global_batch,
        "train_micro_batch_size_per_gpu": job.dims.micro_batch,
        "gradient_accumulation_steps": job.dims.accumulation,
        "gradient_clipping": h.clip_norm,
        "bf16": {"enabled": half == "bf16"},
        "fp16": {"enabled": half == "fp16"},
        "zero_optimization": zero,
        "optimizer": optimizer,
        "scheduler": schedule,
        "seed": h.seed,
    }
