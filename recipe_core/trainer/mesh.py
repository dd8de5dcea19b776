"""Which rank does what: the one owner of the parallel degrees and of the batch that they divide."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .errors import TrainError
from .settings import Batch, Settings, Split


@dataclass(frozen=True)
class Degrees:
    """pp × replicate × shard × tp = devices, outermost first; ``micro_batches`` of a step on one replica."""

    pp: int
    replicate: int
    shard: int
    tp: int
    micro_batches: int

    @property
    def dp(self) -> int:
        """Replicas of the model, whole or divided."""
        return self.replicate * self.shard


def degrees(split: Split, batch: Batch, world: int, *, elastic: bool) -> Degrees:
    """Degrees for ``world`` devices: as planned, or, elastic, with as many replicas as fit.

    Raises:
        TrainError: when the devices or the global batch do not come out even; every term is in the
            message.
    """
    model = split.tp * split.pp
    planned = model * split.dp
    if world != planned and (not elastic or world % model):
        terms = f"tp({split.tp}) × pp({split.pp}) × dp({split.dp}) = {planned} ≠ {world} processes"
        hint = (
            f"An elastic run takes multiples of tp × pp = {model}."
            if elastic
            else f"Start {planned} processes."
        )
        raise TrainError(f"{terms}.", hint=hint)
    dp = world // model
    each = dp * batch.micro_batch
    if batch.global_batch % each:
        terms = f"global_batch({batch.global_batch}) is not divisible by dp({dp}) × micro_batch({batch.micro_batch}) = {each}"
        raise TrainError(f"{terms}.", hint="Use another number of devices, or plan again.")
    shard = _shard(split, dp)
    return Degrees(split.pp, dp // shard, shard, split.tp, batch.global_batch // each)


def _shard(split: Split, dp: int) -> int:
    """Ranks that divide states: as planned where that divides the replicas there are, else all of them."""
    if split.zero_stage == 0:
        return 1
    return split.shard if split.shard < split.dp and dp % split.shard == 0 else dp


@dataclass(frozen=True)
class World:
    """A process among all: its device, the mesh, and its places in it."""

    device: torch.device
    mesh: DeviceMesh
    degrees: Degrees

    @property
    def rank(self) -> int:
        """Number of this process."""
        return dist.get_rank()

    @property
    def dp_rank(self) -> int:
        """Which replica this process belongs to."""
        return self.mesh.get_local_rank(
            "replicate"
        ) * self.degrees.shard + self.mesh.get_local_rank("shard")

    @property
    def pp_rank(self) -> int:
        """Which place in the pipeline this process has."""
        return self.mesh.get_local_rank("pp")

    @property
    def data_mesh(self) -> DeviceMesh:
        """The mesh that FSDP divides and copies over; one dimension where nothing is copied."""
        return (
            self.mesh["shard"] if self.degrees.replicate == 1 else self.mesh["replicate", "shard"]
        )


def join(settings: Settings) -> World:
    """Meet the other processes.

    Raises:
        TrainError: when this was not started by torchrun, or there are too few or too many
            processes.
    """
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
        if name not in os.environ
    ]
    if missing:
        raise TrainError(
            f"{missing[0]} is not set.",
            hint="Start it with torchrun, or with `python launch.py up`.",
        )
    found = degrees(
        settings.split, settings.batch, int(os.environ["WORLD_SIZE"]), elastic=settings.elastic
    )
    if torch.cuda.is_available():  # ROCm builds of torch say cuda too, and their nccl is RCCL
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cuda:nccl,cpu:gloo", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    shape = (found.pp, found.replicate, found.shard, found.tp)
    return World(
        device,
        init_device_mesh(device.type, shape, mesh_dim_names=("pp", "replicate", "shard", "tp")),
        found,
    )
