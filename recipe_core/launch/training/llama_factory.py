"""LLaMA-Factory with DeepSpeed: its own files, and ``llamafactory-cli train`` (0.9.5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.engines.training_programs import program_facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.axolotl import tool_ds_config
from recipe_core.launch.training.job import Job, job_launch, torch_environment, trainer_processes
from recipe_core.launch.training.tuning import (
    CHECKPOINTS,
    ROWS,
    adapter_targets,
    kernel_modules,
    start_files,
    tool_start_words,
    trainer_arguments,
)

_ATTENTION = {"flash": "sdpa", "cudnn": "sdpa", "flash2": "fa2", "eager": "disabled"}
_DATASET, _INFO = "sample", "data/dataset_info.json"
_TAGS = {"user": "user", "assistant": "assistant", "system": "system"}


def launch_llama_factory(job: Job) -> Launch:
    """LLaMA-Factory's command line, which starts torchrun by what stands in the environment."""
    config, zero = llama_factory_config(job), tool_ds_config(job)
    places = ("model_name_or_path=${model}", f"output_dir={CHECKPOINTS}")
    paths = ("dataset_dir=${run}/data", "deepspeed=${root}/ds_config.json")
    command = ("llamafactory-cli", "train", "${root}/llama_factory.yaml", *places, *paths)
    laid = ("--single", "--beside", f"${{root}}/{_INFO}")
    words = (
        *tool_start_words(job, *laid, "--splits-words"),
        *command,
    )  # its launcher.py joins and splits them
    meeting = {
        "FORCE_TORCHRUN": "1",
        "NNODES": str(job.nodes),
        "NPROC_PER_NODE": str(job.processes_per_node),
        "MASTER_ADDR": "${head}",
        "MASTER_PORT": "${port}",
    }
    plain = trainer_processes(job, lambda _: words, torch_environment(job) | meeting)
    ranked = tuple(
        replace(process, env={**process.env, "NODE_RANK": str(process.node)}) for process in plain
    )
    files = {
        "llama_factory.yaml": to_yaml(config),
        "ds_config.json": to_json(zero),
        _INFO: to_json(dataset_info(job)),
        **start_files(job),
    }
    trainer_launch = job_launch(job, ranked, {**config, "deepspeed": zero}, files)
    # without the package it takes another kernel and goes on
    return replace(
        trainer_launch, requires=(*trainer_launch.requires, *kernel_modules(job, "flash_attn"))
    )


def llama_factory_config(job: Job) -> dict[str, Any]:
    """Every estimated value, by the name of LLaMA-Factory's argument, also where it is default."""
    setting = job.setting
    dpo = setting.method == "dpo"
    out: dict[str, Any] = {
        "do_train": True,
        "stage": "dpo" if dpo else "sft",
        "finetuning_type": "lora" if setting.frozen else "full",
        "dataset": _DATASET,
        "cutoff_len": job.sequence_length,
        "flash_attn": _ATTENTION[setting.attention],
        "disable_gradient_checkpointing": job.recompute != "full",
        "enable_liger_kernel": job.fused_loss,
        "overwrite_output_dir": False,  # goes on from the newest checkpoint
        **trainer_arguments(job),
    }
    if dpo:
        out |= {"pref_loss": "sigmoid", "pref_beta": program_facts().hyperparameters.dpo.beta}
    else:
        out |= {"packing": setting.packed, "train_on_prompt": False, "mask_history": False}
    return out | _llama_factory_adapters(job)


def _llama_factory_adapters(job: Job) -> dict[str, Any]:
    setting = job.setting
    if not setting.frozen:
        return {}
    out: dict[str, Any] = {
        "lora_rank": setting.lora_rank,
        "lora_alpha": int(setting.lora_alpha),
        "lora_dropout": 0.0,
        "lora_target": ",".join(adapter_targets(job)) or "all",
    }
    if setting.method == "qlora":
        out |= {"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True}
        out |= {"quantization_method": "bnb"}
    return out


def dataset_info(job: Job) -> dict[str, Any]:
    """Return what LLaMA-Factory reads the sample's columns by."""
    tags = {f"{role}_tag": name for role, name in _TAGS.items()}
    message_tags = {"role_tag": "role", "content_tag": "content", **tags}
    row: dict[str, Any] = {
        "file_name": PurePosixPath(ROWS).name,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": message_tags,
    }
    if job.setting.method == "dpo":
        row["ranking"] = True
        row["columns"] = {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"}
    return {_DATASET: row}
