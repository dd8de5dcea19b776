"""verl (0.9.1): a Hydra configuration over its ``ppo_trainer``, with all that was estimated."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.engines.training_programs import program_facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    pool_devices,
    ray_launch,
    rollout_of,
)
from recipe_core.launch.training.sources import REWARD, TASKS
from recipe_core.launch.training.tuning import adapter_targets
from recipe_core.request.describe import model_short_name

# Name of the configuration, and of its file without the ending.
CONFIG = "verl"
_KL_ESTIMATOR = "low_var_kl"


def launch_verl(job: Job) -> Launch:
    """``verl.trainer.main_ppo`` with the bundle's configuration; paths are words of its command."""
    config = verl_config(job)
    data = job.setting.data or f"${{root}}/{TASKS}"
    reward = rollout_of(job).work.reward_file or f"${{root}}/{REWARD}.py"
    places = {
        "data.train_files": data,
        "data.val_files": data,
        "actor_rollout_ref.model.path": "${model}",
        "reward.custom_reward_function.path": reward,
        "trainer.default_local_dir": "${run}/checkpoints",
        "hydra.run.dir": "${run}/hydra",
    }
    if rollout_of(job).sampling.critic:
        places["critic.model.path"] = "${model}"
    name = ("--config-path", "${root}", "--config-name", CONFIG)
    overrides = tuple(f"{field}='{place}'" for field, place in places.items())
    program = ("python3", "-m", "verl.trainer.main_ppo", *name, *overrides)
    return ray_launch(job, program, config, {f"{CONFIG}.yaml": to_yaml(config)})


def verl_config(job: Job) -> dict[str, Any]:
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": _verl_data_config(job),
        "actor_rollout_ref": {
            "hybrid_engine": not rollout_of(job).sampling.apart,
            "model": _verl_model_config(job) | _verl_merge_config(job),
            "actor": _verl_actor_config(job),
            "ref": _verl_reference_config(job),
            "rollout": _verl_rollout_config(job),
        },
        "critic": _verl_critic_config(job),
        "reward": {"custom_reward_function": {"name": "compute_score"}},
        "algorithm": _verl_algorithm_config(job),
        "trainer": _verl_trainer_config(job),
    }


def _verl_model_config(job: Job) -> dict[str, Any]:
    """Return what is trained of a model; with adapters actor and critic have theirs."""
    setting = job.setting
    out: dict[str, Any] = {
        "enable_gradient_checkpointing": job.recompute == "full",
        "use_remove_padding": True,
    }
    if setting.frozen:
        out |= {"lora_rank": setting.lora_rank, "lora_alpha": int(setting.lora_alpha)}
        out["target_modules"] = [*adapter_targets(job)] or "all-linear"
    return out


def _verl_merge_config(job: Job) -> dict[str, Any]:
    return {"lora": {"merge": rollout_of(job).sampling.merged}} if job.setting.frozen else {}


def _verl_data_config(job: Job) -> dict[str, Any]:
    work = rollout_of(job).work
    return {
        "train_batch_size": work.prompts,
        "max_prompt_length": job.sequence_length - work.longest_response,
        "max_response_length": work.longest_response,
        "filter_overlong_prompts": True,
        "shuffle": True,
        "seed": job.hyper.seed,
    }


def _mini_batch(job: Job) -> int:
    """Prompts of an optimizer step; verl multiplies them by the answers of each."""
    return job.dims.global_batch // rollout_of(job).work.samples


def _verl_fsdp_config(job: Job, *, offload: bool) -> dict[str, Any]:
    """Return how FSDP2 divides states; with ``offload`` they wait on the host while unused."""
    fully_sharded = job.dims.sharded >= job.dims.dp * job.dims.cp
    return {
        "fsdp_size": -1 if fully_sharded else job.dims.sharded,
        "reshard_after_forward": job.zero_stage == 3,
        "param_offload": offload,
        "optimizer_offload": offload,
        "model_dtype": "bfloat16" if job.setting.frozen else "fp32",
        "dtype": "bfloat16",
    }


def _verl_optimizer_config(job: Job, rate: float) -> dict[str, Any]:
    h = job.hyper
    return {
        "lr": rate,
        "betas": [h.beta1, h.beta2],
        "weight_decay": h.weight_decay,
        "clip_grad": h.clip_norm,
    }


def _verl_actor_config(job: Job) -> dict[str, Any]:
    roll, reinforcement = rollout_of(job), program_facts().hyperparameters.reinforcement
    grouped = not roll.sampling.critic
    rate = reinforcement.adapter_rate if job.setting.frozen else reinforcement.rate
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": _mini_batch(job),
        "ppo_epochs": roll.work.epochs,
        "use_dynamic_bsz": True,  # micro-batches of so many tokens, packed
        "ppo_max_token_len_per_gpu": roll.packed_tokens,
        "use_kl_loss": roll.work.reference and grouped,
        "kl_loss_coef": reinforcement.kl,
        "kl_loss_type": _KL_ESTIMATOR,
        "grad_clip": job.hyper.clip_norm,
        "fsdp_config": _verl_fsdp_config(job, offload=roll.offload),
        "optim": _verl_optimizer_config(job, rate),
    }


def _verl_reference_config(job: Job) -> dict[str, Any]:
    roll = rollout_of(job)
    states = _verl_fsdp_config(job, offload=roll.offload)
    return {
        "log_prob_max_token_len_per_gpu": roll.packed_tokens,
        "fsdp_config": states | {"model_dtype": "bfloat16", "optimizer_offload": False},
    }


def _verl_rollout_config(job: Job) -> dict[str, Any]:
    roll = rollout_of(job)
    out: dict[str, Any] = {
        "name": roll.work.engine,
        "n": roll.work.samples,
        "tensor_model_parallel_size": roll.tp,
        "gpu_memory_utilization": roll.memory_share,
        "max_num_seqs": roll.max_num_seqs,
        "max_num_batched_tokens": roll.max_batched_tokens,
        "max_model_len": job.sequence_length,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "free_cache_engine": not roll.sampling.apart,  # it sleeps while the model is trained
        "log_prob_max_token_len_per_gpu": roll.packed_tokens,
    }
    if roll.sampling.adapters and not roll.sampling.merged:
        # The engine loads the base itself, and is sent adapters, gathered layer by layer.
        out |= {"load_format": "safetensors", "layered_summon": True}
    if roll.sampling.apart:
        rollout_pool = pool_devices(roll.devices, job.per_node)
        out |= {"nnodes": rollout_pool.nodes, "n_gpus_per_node": rollout_pool.per_node}
        out["checkpoint_engine"] = {"backend": "nccl"}
    return out


def _verl_critic_config(job: Job) -> dict[str, Any]:
    roll = rollout_of(job)
    return {
        "enable": roll.sampling.critic,
        "strategy": "fsdp2",
        "ppo_max_token_len_per_gpu": roll.packed_tokens,
        "grad_clip": job.hyper.clip_norm,
        "model": _verl_model_config(job),
        "fsdp": _verl_fsdp_config(job, offload=roll.offload),
        "optim": _verl_optimizer_config(
            job, program_facts().hyperparameters.reinforcement.critic_rate
        ),
    }


def _verl_algorithm_config(job: Job) -> dict[str, Any]:
    roll = rollout_of(job)
    critic = roll.sampling.critic
    return {
        "adv_estimator": "gae" if critic else "grpo",
        "use_kl_in_reward": roll.work.reference and critic,
        "kl_ctrl": {"kl_coef": program_facts().hyperparameters.reinforcement.kl},
        "rollout_correction": {"bypass_mode": not roll.work.old_log_probs},
    }


def _verl_trainer_config(job: Job) -> dict[str, Any]:
    roll, trains = rollout_of(job), pool_devices(job.dims.devices, job.per_node)
    out: dict[str, Any] = {
        "nnodes": trains.nodes,
        "n_gpus_per_node": trains.per_node,
        "total_training_steps": job.steps,
        "total_epochs": job.steps,  # an epoch has a step at least
        "save_freq": job.checkpoint_steps,
        "max_actor_ckpt_to_keep": KEPT_CHECKPOINTS,
        "max_critic_ckpt_to_keep": KEPT_CHECKPOINTS,
        "resume_mode": "auto",
        "val_before_train": False,
        "test_freq": -1,
        "logger": ["console"],
        "project_name": "recipe-builder",
        "experiment_name": model_short_name(job.setting.model.name),
    }
    if roll.sampling.apart:  # one step ahead: weights move after all updates of a step
        out["v1"] = {
            "trainer_mode": "separate_async",
            "separate_async": {
                "num_warmup_batches": 1,
                "parameter_sync_step": roll.work.prompts // _mini_batch(job),
            },
            "sampler": {"max_off_policy_threshold": 1, "max_off_policy_strategy": "wait"},
        }
    return out
