"""Which rank does what: owns the parallel degrees and the batch they divide."""

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
    """pp × replicate × shard × tp = devices, outermost first.

    ``micro_batches``: those of a step on one replica.
    """

    pp: int
    replicate: int
    shard: int
    tp: int
    micro_batches: int

    @property
    def dp(self) -> int:
        return self.replicate * self.shard


def resolve_mesh_degrees(split: Split, batch: Batch, world: int, *, elastic: bool) -> Degrees:
    """Degrees for ``world`` devices: as planned, or, elastic, with as many replicas as fit.

    Raises:
        TrainError: when devices or global batch are not divisible; the message has every term.
    """
    model = split.tp * split.pp
    planned = model * split.dp
    if world != planned and (not elastic or world % model):
        terms = f"tp({split.tp}) × pp({split.pp}) × dp({split.dp}) = {planned} ≠ {world} processes"
        hint = f"Start {planned} processes."
        if elastic:
            hint = f"An elastic run needs a multiple of tp × pp = {model}."
        raise TrainError(f"{terms}.", hint=hint)
    dp = world // model
    sequences = dp * batch.micro_batch
    if batch.global_batch % sequences:
        terms = f"dp({dp}) × micro_batch({batch.micro_batch}) = {sequences}"
        message = f"global_batch({batch.global_batch}) is not divisible by {terms}."
        raise TrainError(message, hint="Use another number of devices, or plan again.")
    shard = _shard(split, dp)
    return Degrees(split.pp, dp // shard, shard, split.tp, batch.global_batch // sequences)


def _shard(split: Split, dp: int) -> int:
    """Ranks that divide states: as planned where that divides the replicas, else all."""
    if split.zero_stage == 0:
        return 1
    return split.shard if split.shard < split.dp and dp % split.shard == 0 else dp


@dataclass(frozen=True)
class World:
    """One process: its device, the mesh, and its place in it."""

    device: torch.device
    mesh: DeviceMesh
    degrees: Degrees

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def dp_rank(self) -> int:
        """The replica that this process belongs to."""
        replicate = self.mesh.get_local_rank("replicate")
        return replicate * self.degrees.shard + self.mesh.get_local_rank("shard")

    @property
    def pp_rank(self) -> int:
        return self.mesh.get_local_rank("pp")

    @property
    def data_mesh(self) -> DeviceMesh:
        """The mesh of FSDP; one dimension where nothing is replicated."""
        names = "shard" if self.degrees.replicate == 1 else ("replicate", "shard")
        return self.mesh[names]


def join_processes(settings: Settings) -> World:
    """Join the other processes.

    Raises:
        TrainError: when torchrun did not start this, or the number of processes is wrong.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    if missing := [name for name in names if name not in os.environ]:
        hint = "Start it with torchrun, or with `python launch.py up`."
        raise TrainError(f"{missing[0]} is not set.", hint=hint)
    processes = int(os.environ["WORLD_SIZE"])
    run = resolve_mesh_degrees(settings.split, settings.batch, processes, elastic=settings.elastic)
    if torch.cuda.is_available():  # ROCm builds of torch say cuda too, and their nccl is RCCL
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cuda:nccl,cpu:gloo", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    shape = (run.pp, run.replicate, run.shard, run.tp)
    axes = ("pp", "replicate", "shard", "tp")
    return World(device, init_device_mesh(device.type, shape, mesh_dim_names=axes), run)
