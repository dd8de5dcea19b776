"""Common words of tools over transformers' trainer: its arguments, and sample data."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.training.job import KEPT_CHECKPOINTS, Job
from recipe_core.launch.training.sources import (
    SAMPLES,
    START,
    json_lines,
    starter_files,
)
from recipe_core.request.training_workload import Attention

# Where checkpoints go, and in the end the trained model or its adapters.
CHECKPOINTS = "${run}/checkpoints"
# Where the tools read, in the run's folder, where they work: of the bundle they only read. There is
# the bundle's sample, or the file that ``up --data`` names.
ROWS = "data/rows.jsonl"
# transformers' words for attention kernels.
ATTENTION: dict[Attention, str] = {
    "flash": "sdpa",
    "cudnn": "sdpa",  # which torch takes there
    "flash2": "flash_attention_2",
    "flash3": "flash_attention_3",
    "eager": "eager",
}
# Names of transformers 5.23 (`OptimizerNames`).
OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw-8bit": "adamw_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
# Linear layers of each half of a layer, as transformers' classes name them; peft adapts those of a
# list that a model has.
MATRICES = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", *_LATENT),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj"),
}


def kernel_modules(job: Job, package: str) -> tuple[str, ...]:
    return (package,) if job.setting.attention in ("flash2", "flash3") else ()


def adapter_targets(job: Job) -> tuple[str, ...]:
    """Names of the matrices that get adapters; empty for every linear layer of a block."""
    return MATRICES.get(job.setting.lora_targets, ())


def data_path(job: Job) -> str:
    return f"data/{_sample_format(job)}.jsonl"


def sample_data_files(job: Job) -> dict[str, str]:
    """The sample data: chats, or preferences for DPO."""
    return {data_path(job): json_lines(SAMPLES[_sample_format(job)]())}


def _sample_format(job: Job) -> str:
    return "preference" if job.setting.method == "dpo" else "chat"


def tool_start_words(job: Job, *options: str) -> tuple[str, ...]:
    """Words before a tool's own, which lay its data in the run's folder and start it there."""
    data = ("--data", f"${{root}}/{data_path(job)}", "--lay", f"${{run}}/{ROWS}")
    return (*START, *data, "--folder", "${run}", *options, "--")


def start_files(job: Job) -> dict[str, str]:
    return starter_files() | sample_data_files(job)


def rows_per_device(job: Job) -> int:
    """Rows of the data in a micro-batch of one device: sequences, or pairs of answers for DPO."""
    return job.dims.micro_batch // 2 if job.setting.method == "dpo" else job.dims.micro_batch


def trainer_arguments(job: Job) -> dict[str, Any]:
    """Arguments of transformers' trainer: batch, precision, learning rate, checkpoints, seed."""
    h, precision = job.hyper, job.setting.precision
    return {
        "max_steps": job.steps,
        "per_device_train_batch_size": rows_per_device(job),
        "gradient_accumulation_steps": job.dims.accumulation,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        **optimizer_words(job, "optim"),
        "learning_rate": h.learning_rate,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": h.least_rate_share},
        "warmup_steps": h.warmup_steps,
        "weight_decay": h.weight_decay,
        "adam_beta1": h.beta1,
        "adam_beta2": h.beta2,
        "adam_epsilon": h.epsilon,
        "max_grad_norm": h.clip_norm,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": job.checkpoint_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "seed": h.seed,
        "data_seed": h.seed,
        "report_to": "none",
    }


def optimizer_words(job: Job, field: str) -> dict[str, Any]:
    """The optimizer by the name of transformers' trainer in ``field``; SGD with its momentum."""
    words = {field: OPTIMIZERS[job.setting.optimizer_name]}
    momentum = {"optim_args": f"momentum={job.hyper.beta1}"}
    return words | (momentum if job.setting.optimizer_name == "sgd" else {})


def gradient_exchange_options(job: Job) -> dict[str, Any]:
    """Return when replicas exchange gradients, as Accelerate is told."""
    once = job.sync_step or job.zero_stage == 0
    return {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": not once}}}
