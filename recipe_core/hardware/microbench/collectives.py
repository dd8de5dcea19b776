"""Collectives between the devices of this machine, by torchrun: sizes and seconds.

    torchrun … collectives.py BACKEND SECONDS

As a program it is one rank; rank 0 prints a line of JSON for each measured size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Bytes that are all-reduced, from what waits to what moves.
SIZES = tuple(1 << power for power in range(10, 27, 2))
MARK = "collective "


@dataclass(frozen=True, slots=True)
class Reduced:
    """An all-reduce of so many bytes between ``ranks``, in the median of its repetitions."""

    ranks: int
    size_bytes: float
    seconds: float


def measure_collectives(ranks: int, backend: str, seconds: float) -> list[Reduced]:
    """All-reduces between ranks on this machine, for about ``seconds`` after they have started.

    Empty where torchrun fails or takes over 60 s longer than that.
    """
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    argv += [f"--nproc-per-node={ranks}", sys.executable, str(Path(__file__).resolve())]
    argv += [backend, str(seconds)]
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_collectives(done.stdout, ranks)


def parse_collectives(output: str, ranks: int) -> list[Reduced]:
    """The measured sizes in a rank's output."""
    rows = []
    for line in output.splitlines():
        if MARK in line:
            size, seconds = json.loads(line.partition(MARK)[2])
            rows.append(Reduced(ranks, float(size), float(seconds)))
    return rows


def main(backend: str, seconds: float) -> None:
    """One rank: all-reduce every size for its share of the time."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    rank = dist.get_rank()
    on_host = backend == "gloo"
    if not on_host:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cpu" if on_host else "cuda")
    for size in SIZES:
        values = torch.ones(size // 4, device=device)
        # all ranks do as many as rank 0 decides: one that counts for itself would wait for ever
        rounds = torch.ones(1, device=device)
        dist.all_reduce(values)
        times: list[float] = []
        until = time.perf_counter() + seconds / len(SIZES)
        while rounds.item() > 0:
            if not on_host:
                torch.cuda.synchronize()
            start = time.perf_counter()
            dist.all_reduce(values)
            if not on_host:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            rounds.fill_(1.0 if time.perf_counter() < until or len(times) < 3 else 0.0)
            dist.broadcast(rounds, 0)
            values.fill_(1.0)
        if rank == 0:
            middle = sorted(times)[len(times) // 2]
            print(MARK + json.dumps([size, middle]), flush=True)  # noqa: T201 - its answer
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
