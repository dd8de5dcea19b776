"""What runs by Ray share: pools of devices, the program on the first node, variables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recipe_core.launch.process import Launch, Process
from recipe_core.launch.training.job import Job, RolloutJob, job_launch
from recipe_core.launch.training.sources import RAY_NODE, reward_files


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one kind of work: nodes, and devices on each."""

    nodes: int
    per_node: int


def pool_devices(devices: int, per_node: int) -> Pool:
    """So many devices on as few nodes as they fill."""
    nodes = max(math.ceil(devices / per_node), 1)
    return Pool(nodes, devices // nodes)


def rollout_of(job: Job) -> RolloutJob:
    """The rollout of a job that samples answers."""
    assert job.rollout is not None  # noqa: S101 - only such methods are launched
    return job.rollout


def devices_of(job: Job) -> Pool:
    """All devices, those that only sample among them."""
    return pool_devices(job.dims.devices + rollout_of(job).devices, job.per_node)


def ray_launch(
    job: Job, program: tuple[str, ...], recorded: dict[str, object], files: dict[str, str]
) -> Launch:
    """The program on one node, or on the first of several that Ray joins."""
    all_devices = devices_of(job)
    several = all_devices.nodes > 1
    devices = tuple(range(all_devices.per_node))

    def words(node: int) -> tuple[str, ...]:
        if not several:
            return program
        ranks = ("--nodes", str(all_devices.nodes), "--node-rank", str(node))
        meeting = ("--head", "${head}", "--port", "${port}", "--gpus", str(all_devices.per_node))
        return ("python3", f"${{root}}/{RAY_NODE}.py", *ranks, *meeting, "--", *program)

    started = tuple(
        Process(
            f"trainer-{node}", words(node), _ray_variables(), 0, devices, node=node, role="trainer"
        )
        for node in range(all_devices.nodes)
    )
    more = reward_files(rollout_of(job).work.prompts, several_nodes=several)
    return job_launch(job, started, recorded, more | files)


def _ray_variables() -> dict[str, str]:
    """Without torch's expandable segments, in which a sleeping engine frees nothing."""
    return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TOKENIZERS_PARALLELISM": "true"}
