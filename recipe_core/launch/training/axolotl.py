"""Axolotl with DeepSpeed: its own configuration file, and ``axolotl train`` (0.19.0).

A 4-bit base in host memory is divided by the first FSDP, as ``qlora_sharded_model_loading``
quantizes layer by layer into the first process' host memory and sends the others their shards;
DeepSpeed and FSDP2 need all of it on every device first (``loaders/model.py`` and the schema's
``check_fsdp2_cpu_ram_efficient_loading_w_4bit``).
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.engines.training_programs import program_facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.deepspeed import ds_config
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    job_launch,
    torch_environment,
    torchrun,
    trainer_processes,
)
from recipe_core.launch.training.tuning import (
    ATTENTION,
    CHECKPOINTS,
    ROWS,
    adapter_targets,
    optimizer_words,
    rows_per_device,
    start_files,
    tool_start_words,
)

_LIGER = "axolotl.integrations.liger.LigerPlugin"
_KERNELS = tuple(f"lora_{part}_kernel" for part in ("mlp", "qkv", "o", "embedding"))


def launch_axolotl(job: Job) -> Launch:
    """Axolotl's command line, which starts torchrun with the words after two dashes."""
    config, zero = axolotl_config(job), {} if by_fsdp(job) else tool_ds_config(job)
    places = ("--base-model", "${model}", "--output-dir", CHECKPOINTS)
    divided = ("--deepspeed", "${root}/ds_config.json") if zero else ()
    start = (
        *tool_start_words(job),
        "axolotl",
        "train",
        "${root}/axolotl.yaml",
        "--launcher",
        "torchrun",
    )

    def words(node: int) -> tuple[str, ...]:
        return (*start, *places, *divided, "--", *torchrun(job, node)[1:])

    files = {
        "axolotl.yaml": to_yaml(config),
        **({"ds_config.json": to_json(zero)} if zero else {}),
        **start_files(job),
    }
    recorded = {**config, **({"deepspeed": zero} if zero else {})}
    return job_launch(job, trainer_processes(job, words, torch_environment(job)), recorded, files)


def by_fsdp(job: Job) -> bool:
    return job.setting.method == "qlora" and job.offload == "parameters"


def tool_ds_config(job: Job) -> dict[str, Any]:
    """DeepSpeed's file as a tool over transformers' trainer checks it: rows as the tool counts."""
    rows, config = rows_per_device(job), ds_config(job)
    if job.setting.optimizer_name != "adamw":  # then transformers' trainer makes it
        config.pop("optimizer")
    config["train_micro_batch_size_per_gpu"] = rows
    config["train_batch_size"] = rows * job.dims.accumulation * job.dims.dp
    if job.zero_stage == 3:
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def axolotl_config(job: Job) -> dict[str, Any]:
    """Every estimated value, by the name of Axolotl's field, also where it is its default."""
    setting, h = job.setting, job.hyper
    out: dict[str, Any] = {
        "base_model": "MODEL",  # in place of it the command names one
        "strict": False,
        "output_dir": "checkpoints",  # in place of it the command names one
        "sequence_len": job.sequence_length,
        "excess_length_strategy": "truncate",
        "micro_batch_size": rows_per_device(job),
        "gradient_accumulation_steps": job.dims.accumulation,
        "max_steps": job.steps,
        "bf16": setting.precision == "bf16",
        "fp16": setting.precision == "fp16",
        "tf32": False,
        "gradient_checkpointing": job.recompute == "full",
        "attn_implementation": ATTENTION[setting.attention],
        **optimizer_words(job, "optimizer"),
        "learning_rate": h.learning_rate,
        "lr_scheduler": "cosine",
        "cosine_min_lr_ratio": h.least_rate_share,
        "warmup_steps": h.warmup_steps,
        "weight_decay": h.weight_decay,
        "adam_beta1": h.beta1,
        "adam_beta2": h.beta2,
        "adam_epsilon": h.epsilon,
        "max_grad_norm": h.clip_norm,
        "seed": h.seed,
        "val_set_size": 0.0,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": job.checkpoint_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "auto_resume_from_checkpoints": True,
        "chat_template": "tokenizer_default_fallback_chatml",
        "dataset_prepared_path": "prepared",
    }
    if job.fused_loss:  # of Liger's kernels the loss alone, as estimated
        out |= {"plugins": [_LIGER], "liger_fused_linear_cross_entropy": True}
    return out | _axolotl_dataset_config(job) | _axolotl_adapters(job) | _fsdp_fields(job)


def _fsdp_fields(job: Job) -> dict[str, Any]:
    """FSDP's fields, where it divides the model; all of it is divided by default."""
    if not by_fsdp(job):
        return {}
    return {
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
        "qlora_sharded_model_loading": True,
        "fsdp_version": 1,
        "fsdp_config": {
            "offload_params": True,
            "cpu_ram_efficient_loading": True,
            "sync_module_states": True,
            "use_orig_params": False,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
        },
    }


def _axolotl_dataset_config(job: Job) -> dict[str, Any]:
    # A file, by whose name it is JSON: beside any other path it looks for data files on the hub.
    rows: dict[str, Any] = {"path": ROWS, "split": "train"}
    if job.setting.method == "dpo":
        columns = {"field_messages": "prompt", "field_chosen": "chosen"}
        columns |= {"field_rejected": "rejected", "type": "chat_template.default"}
        beta = program_facts().hyperparameters.dpo.beta
        return {"rl": "dpo", "rl_beta": beta, "datasets": [rows | columns]}
    learnt: dict[str, Any] = {"type": "chat_template", "field_messages": "messages"}
    learnt |= {"roles_to_train": ["assistant"], "train_on_eos": "turn"}
    packing = {
        "sample_packing": job.setting.packed,
        "multipack_real_batches": True,  # rows of the sequence's length, as estimated
        "pad_to_sequence_len": True,
        "train_on_inputs": False,
    }
    return {"datasets": [rows | learnt]} | packing


def _axolotl_adapters(job: Job) -> dict[str, Any]:
    setting = job.setting
    if not setting.frozen:
        return {}
    return {
        "adapter": setting.method,
        "load_in_4bit": setting.method == "qlora",
        "load_in_8bit": False,
        "lora_r": setting.lora_rank,
        "lora_alpha": int(setting.lora_alpha),
        "lora_dropout": 0.0,
        # Left out, Axolotl turns its own kernels on, which the estimate does not count.
        **dict.fromkeys(_KERNELS, False),
        **_axolotl_lora_targets(job),
    }


def _axolotl_lora_targets(job: Job) -> dict[str, Any]:
    names = adapter_targets(job)
    return {"lora_target_modules": [*names]} if names else {"lora_target_linear": True}
