"""Rates of moving bytes: memory of the device, copies from and to the host, disks."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from recipe_core.hardware.microbench.points import Bench, Timing, Work, time_work

READ_BYTES = 1 << 28
COPY_BYTES = 1 << 27
DISK_BYTES = 1 << 27
_BLOCK = 1 << 22


def memory_bandwidth(bench: Bench, seconds: float) -> tuple[float, Timing]:
    """Bytes per second of reading memory that no cache holds, and the timing of one reading."""
    import torch

    size = int(max(READ_BYTES, 4 * bench.cache_bytes))
    size = int(min(size, bench.memory_bytes / 8))
    values = torch.ones(size // 4, device=bench.device)
    timing = time_work(values.sum, bench.clock, seconds, batch_s=1e-3)
    return values.nbytes / timing.seconds, timing


def launch_s(bench: Bench, seconds: float) -> float:
    """Seconds between the starts of kernels that do nothing much: what a launch costs."""
    import torch

    tensor = torch.zeros(16, device=bench.device)
    return time_work(lambda: tensor.add_(1), bench.clock, seconds).seconds


def host_copies(bench: Bench, seconds: float) -> tuple[float, float]:
    """Bytes per second to and from the device, through pinned memory."""
    import torch

    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=bench.accelerated)
    on_device = torch.empty(COPY_BYTES, dtype=torch.uint8, device=bench.device)

    def rate(work: Work) -> float:
        return COPY_BYTES / time_work(work, bench.clock, seconds / 2, batch_s=1e-3).seconds

    return (
        rate(lambda: on_device.copy_(pinned, non_blocking=True)),
        rate(lambda: pinned.copy_(on_device, non_blocking=True)),
    )


def model_cache() -> Path:
    """The folder of downloaded models, as the Hugging Face Hub's client finds it."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def existing_parent(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: it lies on the same disk."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def disk_rates(folder: Path, size: int = DISK_BYTES) -> tuple[float | None, float]:
    """Bytes per second of reading a new file there: from the disk, and from the kernel's cache.

    The first is None where the kernel keeps the file in memory all the same (tmpfs, for example).
    A file of ``size`` bytes is written, and removed.

    Raises:
        OSError: when the folder cannot be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(_BLOCK)
        for _ in range(size // _BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        number = file.fileno()
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        cold = _read_rate(file)
        warm = max(_read_rate(file) for _ in range(2))
    return (cold if cold < 0.7 * warm else None), warm


def _read_rate(file: Any) -> float:
    file.seek(0)
    buffer, total, start = bytearray(_BLOCK), 0, time.perf_counter()
    while count := file.readinto(buffer):
        total += count
    return float(total / (time.perf_counter() - start))
