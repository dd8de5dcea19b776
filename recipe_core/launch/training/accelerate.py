"""Accelerate with FSDP2: its own configuration file, and ``accelerate launch`` on every node."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.launch.process import Launch
from recipe_core.launch.training.embedded import launch_hf_trainer
from recipe_core.launch.training.job import Job


def launch_accelerate(job: Job) -> Launch:
    """Transformers' trainer under Accelerate."""
    config = accelerate_config(job)
    start = ("accelerate", "launch", "--config_file", "${root}/accelerate.yaml")
    files = {"accelerate.yaml": to_yaml(config)}
    return launch_hf_trainer(
        job, {"accelerate": config}, files, lambda node: (*start, *machine_words(node))
    )


def machine_words(node: int) -> tuple[str, ...]:
    """Accelerate's words for a node: its rank, and where all meet."""
    rank = ("--machine_rank", str(node))
    return (*rank, "--main_process_ip", "${head}", "--main_process_port", "${port}")


def accelerate_config(job: Job) -> dict[str, Any]:
    """Accelerate's file: how many processes, and how FSDP2 divides."""
    plain = job.zero_stage == 0
    out: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _distributed_type(job, plain=plain),
        "main_training_function": "main",
        "mixed_precision": job.setting.precision,
        "num_machines": job.nodes,
        "num_processes": job.dims.devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": job.setting.cluster.device.runtime == "cpu",
    }
    if job.setting.compiles:
        out["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    if plain:
        return out
    out["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": job.zero_stage == 3,
        "fsdp_activation_checkpointing": job.recompute == "full",
        "fsdp_activation_checkpointing_offload": job.activation_offload,
        "fsdp_offload_params": job.offload == "parameters",
        # The first rank's copy is sent to all, as in TRL's own examples.
        "fsdp_cpu_ram_efficient_loading": job.from_weights,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    out["parallelism_config"] = {
        "parallelism_config_dp_replicate_size": job.dims.copies,
        "parallelism_config_dp_shard_size": job.dims.sharded // job.dims.cp,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": job.dims.cp,
    }
    if job.dims.cp > 1:
        out["parallelism_config"]["parallelism_config_cp_comm_strategy"] = "allgather"
    return out


def _distributed_type(job: Job, *, plain: bool) -> str:
    cpu = job.setting.cluster.device.runtime == "cpu"
    if not cpu and not plain:
        return "FSDP"
    if job.dims.devices == 1:
        return "NO"
    return "MULTI_CPU" if cpu else "MULTI_GPU"
