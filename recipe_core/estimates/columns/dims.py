"""The two products that a training run must satisfy.

devices      = tp × pp × cp × dp
global_batch = micro_batch × accumulation × dp
"""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.base.errors import InputError


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Degrees of a run and its batch, in sequences.

    ``shard``: ranks over which states are divided (None: all of dp × cp). Construction checks
    nothing, so that a split that cannot run can still say why; `check` raises.
    """

    tp: int
    pp: int
    cp: int
    dp: int
    micro_batch: int
    global_batch: int
    shard: int | None = None

    @property
    def devices(self) -> int:
        """Ranks of the run."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same part of the model, over which states can be divided."""
        return self.dp * self.cp

    @property
    def sharded(self) -> int:
        """Replicas over which states are divided."""
        return self.shard or self.replicas

    @property
    def copies(self) -> int:
        """Groups of replicas that each hold all states between them: more than one is HSDP."""
        return self.replicas // self.sharded

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step on one replica."""
        return self.global_batch // self.sequences

    @property
    def sequences(self) -> int:
        """Sequences that all replicas work on at once."""
        return self.dp * self.micro_batch

    @property
    def nearest_batches(self) -> tuple[int, ...]:
        """The closest multiples of `sequences`: the one below (if positive) and the one above."""
        below = self.global_batch // self.sequences * self.sequences
        return tuple(batch for batch in (below, below + self.sequences) if batch)

    def device_terms(self, available: int) -> str:
        """``TP 2 × PP 4 × CP 1 × DP 8 = 64 devices; only 32 available``."""
        terms = f"TP {self.tp} × PP {self.pp} × CP {self.cp} × DP {self.dp}"
        only = "only " if self.devices > available else ""
        return f"{terms} = {self.devices:,} devices; {only}{available:,} available"

    def batch_terms(self) -> str:
        """Every term of the global batch, and the closest batches that are divisible."""
        batches = " or ".join(f"{batch:,}" for batch in self.nearest_batches)
        terms = f"DP {self.dp} × micro_batch {self.micro_batch} = {self.sequences:,}"
        return f"global_batch {self.global_batch:,} is not divisible by {terms}; nearest: {batches}"

    def shard_terms(self) -> str:
        """``DP 4 × CP 2 = 8 replicas are not divisible by shard 3``."""
        replicas = f"DP {self.dp} × CP {self.cp} = {self.replicas} replicas"
        return f"{replicas} are not divisible by shard {self.shard}"

    def check(self, devices: int) -> None:
        """Check both products and the shards.

        Raises:
            InputError: with every term of the first product that is violated.
        """
        degrees = (self.tp, self.pp, self.cp, self.dp, self.shard or 1)
        if min(*degrees, self.micro_batch, self.global_batch) < 1:
            raise InputError(
                f"{self} has a degree below 1.",
                field="candidate",
                hint="Degrees and batches must be 1 or more.",
            )
        if self.devices != devices:
            raise InputError(
                f"{self.device_terms(devices)}.",
                field="candidate",
                hint="Change a degree or the number of devices.",
            )
        if self.global_batch % self.sequences:
            raise InputError(
                f"{self.batch_terms()}.",
                field="workload.global_batch",
                hint="Change the batch, DP or micro_batch.",
            )
        if self.shard is not None and self.replicas % self.shard:
            raise InputError(
                f"{self.shard_terms()}.",
                field="candidate.shard",
                hint="Leave it out to shard over all replicas.",
            )
