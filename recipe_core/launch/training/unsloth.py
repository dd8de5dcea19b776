"""Unsloth on one node: a script of a few lines over its own trainer, and its settings (2026.10)."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.launch.entry import train_py
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    Job,
    job_launch,
    torch_environment,
    torchrun,
    trainer_processes,
)
from recipe_core.launch.training.sources import program_files
from recipe_core.launch.training.tuning import (
    DTYPES,
    adapter_targets,
    data_path,
    sample_data_files,
    trainer_arguments,
)

# Every linear layer of a block, as Unsloth names them: it wants them listed.
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def launch_unsloth(job: Job) -> Launch:
    """One process a device."""
    settings = unsloth_settings(job)
    script = ("${root}/train_unsloth.py", "--config", "${root}/unsloth.json")
    words = (*script, "--out", "${run}", "--model", "${model}")
    files = {
        "unsloth.json": to_json(settings),
        "train_unsloth.py": train_py("train_unsloth.py", "unsloth_sft"),
        **program_files("start_tool", "unsloth_sft"),
        **sample_data_files(job),
    }
    started = trainer_processes(
        job, lambda node: (*torchrun(job, node), *words), torch_environment(job)
    )
    return job_launch(job, started, settings, files)


def unsloth_settings(job: Job) -> dict[str, Any]:
    """Arguments of ``from_pretrained``, ``get_peft_model`` and ``SFTConfig``, by their names."""
    setting, seed = job.setting, job.hyper.seed
    # "unsloth", its documented default, moves what waits to the host.
    again = job.recompute == "full"
    mode = "unsloth" if job.activation_offload else again
    arguments = trainer_arguments(job) | {
        "max_length": job.sequence_length,
        "packing": setting.packed,
        "packing_strategy": "bfd",
        "assistant_only_loss": True,
        "gradient_checkpointing": again,
        "ddp_find_unused_parameters": False,
    }
    return {
        "schema_version": 1,
        "data": data_path(job),
        "load": {
            "max_seq_length": job.sequence_length,
            "dtype": DTYPES[setting.precision],
            "load_in_4bit": setting.method == "qlora",
            "full_finetuning": False,
            "use_gradient_checkpointing": mode,
            "random_state": seed,
            "max_lora_rank": setting.lora_rank,
        },
        "adapters": {
            "r": setting.lora_rank,
            "lora_alpha": int(setting.lora_alpha),
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": [
                name for name in _TARGETS if name in (adapter_targets(job) or _TARGETS)
            ],
            "use_gradient_checkpointing": mode,
            "random_state": seed,
        },
        "arguments": arguments,
    }
