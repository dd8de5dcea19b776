"""TRL under Accelerate: ``trl sft`` or ``trl dpo`` with its own configuration file (1.16.0)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.engines.training_programs import program_facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.accelerate import accelerate_config, machine_words
from recipe_core.launch.training.job import Job, job_launch, torch_environment, trainer_processes
from recipe_core.launch.training.tuning import (
    ATTENTION,
    CHECKPOINTS,
    DTYPES,
    ROWS,
    adapter_targets,
    gradient_exchange_options,
    kernel_modules,
    start_files,
    tool_start_words,
    trainer_arguments,
)


def launch_trl(job: Job) -> Launch:
    """TRL's command line on every node, from the newest checkpoint on where there is one."""
    accelerate, config = whole_model(accelerate_config(job)), trl_config(job)
    command = "dpo" if job.setting.method == "dpo" else "sft"
    start = tool_start_words(job, "--checkpoints", CHECKPOINTS)
    files_ = ("--config", "${root}/trl.yaml", "--accelerate_config", "${root}/accelerate.yaml")
    places = ("--model_name_or_path", "${model}", "--output_dir", CHECKPOINTS)

    def words(node: int) -> tuple[str, ...]:
        return (*start, "trl", command, *files_, *places, *machine_words(node))

    files = {
        "trl.yaml": to_yaml(config),
        "accelerate.yaml": to_yaml(accelerate),
        **start_files(job),
    }
    recorded = {"command": command, **config, "accelerate": accelerate}
    trainer_launch = job_launch(
        job, trainer_processes(job, words, torch_environment(job)), recorded, files
    )
    return replace(
        trainer_launch, requires=(*trainer_launch.requires, *kernel_modules(job, "kernels"))
    )


def whole_model(accelerate: dict[str, Any]) -> dict[str, Any]:
    """Accelerate's file with state dicts that hold the whole model: of shards TRL saves no end."""
    if "fsdp_config" not in accelerate:
        return accelerate
    fsdp = accelerate["fsdp_config"] | {"fsdp_state_dict_type": "FULL_STATE_DICT"}
    return accelerate | {"fsdp_config": fsdp}


def trl_config(job: Job) -> dict[str, Any]:
    """Every estimated value, by the name of TRL's argument, also where it is TRL's default."""
    setting, sharded = job.setting, job.zero_stage > 0
    out = trainer_arguments(job) | gradient_exchange_options(job)
    # Under FSDP Accelerate keeps what is trained in fp32; adapters are in fp32 by themselves.
    narrow = sharded or setting.frozen
    out |= {
        "dtype": DTYPES[setting.precision] if narrow else "float32",
        "attn_implementation": ATTENTION[setting.attention],
        "datasets": [{"path": "json", "data_files": ROWS, "split": "train"}],
        "max_length": job.sequence_length,
        "gradient_checkpointing": job.recompute == "full" and not sharded,  # else by Accelerate
        "use_cpu": setting.cluster.device.runtime == "cpu",
    }
    if setting.method == "dpo":
        out |= {"beta": program_facts().hyperparameters.dpo.beta, "loss_type": ["sigmoid"]}
        out |= {"precompute_ref_log_probs": False}
    else:
        out |= {"packing": setting.packed, "packing_strategy": "wrapped"}
        out |= {"assistant_only_loss": True}
    if job.dims.cp > 1:  # each rank takes two pieces of a sequence
        out["pad_to_multiple_of"] = 2 * job.dims.cp
    return out | _trl_adapters(job)


def _trl_adapters(job: Job) -> dict[str, Any]:
    setting = job.setting
    if not setting.frozen:
        return {}
    out: dict[str, Any] = {
        "use_peft": True,
        "lora_r": setting.lora_rank,
        "lora_alpha": int(setting.lora_alpha),
        "lora_dropout": 0.0,
        "lora_target_modules": [*(adapter_targets(job) or ("all-linear",))],
    }
    if setting.method == "qlora":
        out |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": True,
            "bnb_4bit_quant_storage": DTYPES[setting.precision],  # FSDP divides no other
        }
    return out
