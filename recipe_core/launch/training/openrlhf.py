"""OpenRLHF (0.11.2): the words of ``train_ppo_ray``, with all that was estimated."""

from __future__ import annotations

from typing import Any

from recipe_core.engines.training_programs import program_facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    pool_devices,
    ray_launch,
    rollout_of,
)
from recipe_core.launch.training.sources import REWARD, TASKS, sample_tasks


def launch_openrlhf(job: Job) -> Launch:
    """``openrlhf.cli.train_ppo_ray``, which Ray spreads over the nodes."""
    options = openrlhf_arguments(job)
    program = ("python3", "-m", "openrlhf.cli.train_ppo_ray", *openrlhf_words(options))
    return ray_launch(job, program, options, {})


def openrlhf_words(options: dict[str, Any]) -> tuple[str, ...]:
    """OpenRLHF's words: ``--part.name value``; true is a flag alone, false is left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return tuple(words)


def openrlhf_arguments(job: Job) -> dict[str, Any]:
    """Every estimated value, also where it is OpenRLHF's default."""
    return {
        **_openrlhf_path_arguments(job),
        **_openrlhf_split_arguments(job),
        **_openrlhf_rollout_arguments(job),
        **_openrlhf_update_arguments(job),
        **_openrlhf_run_arguments(job),
    }


def _openrlhf_path_arguments(job: Job) -> dict[str, Any]:
    out = {
        "actor.model_name_or_path": "${model}",
        "data.prompt_dataset": f"${{root}}/{TASKS}",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.apply_chat_template": True,
        # a program, not a server
        "reward.remote_url": rollout_of(job).work.reward_file or f"${{root}}/{REWARD}.py",
        "ckpt.path": "${run}/checkpoints",
        "ckpt.output_dir": "${run}/model",
    }
    if rollout_of(job).sampling.critic:
        out["critic.model_name_or_path"] = "${model}"
    return out


def _openrlhf_split_arguments(job: Job) -> dict[str, Any]:
    """Devices of the models that train or score, and how DeepSpeed divides their states."""
    roll, trains = rollout_of(job), pool_devices(job.dims.devices, job.per_node)
    out: dict[str, Any] = {}
    for model in ("actor", "ref", "critic", "reward"):
        out[f"{model}.num_nodes"] = trains.nodes
        out[f"{model}.num_gpus_per_node"] = trains.per_node
    return out | {
        "train.colocate_all": True,
        "train.async_enable": roll.sampling.apart,
        "train.async_queue_size": 1,
        "ds.zero_stage": job.zero_stage,
        "ds.param_dtype": job.setting.precision,
        "ds.adam_offload": job.offload == "optimizer",
        "ds.enable_sleep": roll.offload,
        "ref.offload": roll.offload,
        "ds.packing_samples": True,
        "ds.attn_implementation": "flash_attention_2",
        "actor.gradient_checkpointing_enable": job.recompute == "full",
    }


def _openrlhf_rollout_arguments(job: Job) -> dict[str, Any]:
    roll = rollout_of(job)
    work = roll.work
    return {
        "vllm.num_engines": roll.copies,
        "vllm.tensor_parallel_size": roll.tp,
        "vllm.gpu_memory_utilization": roll.memory_share,
        "vllm.enable_prefix_caching": True,
        "vllm.enable_sleep": not roll.sampling.apart,
        "rollout.batch_size": work.prompts,
        "rollout.n_samples_per_prompt": work.samples,
        "rollout.max_new_tokens": work.longest_response,
        "rollout.micro_batch_size": job.dims.micro_batch,
        "rollout.max_tokens_per_gpu": roll.packed_tokens,
        "data.max_len": job.sequence_length,
    }


def _openrlhf_update_arguments(job: Job) -> dict[str, Any]:
    roll, h, usual = rollout_of(job), job.hyper, program_facts().hyperparameters.reinforcement
    grouped = not roll.sampling.critic
    out: dict[str, Any] = {
        "algo.advantage.estimator": "group_norm" if grouped else "gae",
        "algo.kl.init_coef": usual.kl if roll.work.reference else 0,
        "algo.kl.use_loss": roll.work.reference and grouped,
        "algo.kl.estimator": "k3" if grouped else "k1",
        "train.batch_size": job.dims.global_batch,
        "train.micro_batch_size": job.dims.micro_batch,
        "train.max_epochs": roll.work.epochs,
        "train.dynamic_batch_enable": True,  # micro-batches of so many tokens, packed
        "train.max_tokens_per_gpu": roll.packed_tokens,
        "train.seed": h.seed,
    }
    for model, rate in (("actor", usual.rate), ("critic", usual.critic_rate)):
        out |= {
            f"{model}.adam.lr": rate,
            f"{model}.adam.betas": [h.beta1, h.beta2],
            f"{model}.adam.eps": h.epsilon,
            f"{model}.adam.weight_decay": h.weight_decay,
            f"{model}.max_norm": h.clip_norm,
            f"{model}.lr_scheduler": "constant",
            f"{model}.lr_warmup_ratio": 0.0,
        }
    return out


def _openrlhf_run_arguments(job: Job) -> dict[str, Any]:
    """As many passes over the tasks as make the steps; a pass has a whole number of them."""
    prompts, steps = rollout_of(job).work.prompts, job.steps or 1
    max_steps_per_episode = len(sample_tasks(prompts)) // prompts
    per_episode = max(k for k in range(1, max_steps_per_episode + 1) if steps % k == 0)
    return {
        "data.max_samples": per_episode * prompts,
        "train.num_episodes": steps // per_episode,
        "ckpt.save_steps": job.checkpoint_steps,
        "ckpt.max_num": KEPT_CHECKPOINTS,
        "ckpt.load_enable": True,
        "logger.logging_steps": 1,
    }
