"""Speed of a folder's storage: a file in sequence, small reads of mapped tokens.

It is bounded in bytes and in time, leaves nothing behind, and starts only where there is room.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from recipe_core.base.errors import InputError

DISK_BYTES = 1 << 30
DISK_S = 30.0
# A sequence of 4,096 tokens of 16 bits, as a training run reads it from a mapped shard.
WINDOW_BYTES = 8192
_BLOCK = 1 << 22
_LEAST_BYTES = 4 * _BLOCK


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes and windows per second; ``direct``: whether reading went past the kernel's cache."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    window_reads_per_s: float
    size_bytes: int
    direct: bool


def measure_disk(folder: Path, size: int = DISK_BYTES, seconds: float = DISK_S) -> DiskRates:
    """Write a file of at most ``size`` bytes in ``folder``, read it, and remove it.

    Writing ends with ``fsync``. Reading in sequence is direct where the file system allows it, else
    after the kernel was asked to forget the file. ``seconds`` bound each of the three parts by a
    third; what was done until then counts.

    Raises:
        InputError: for what is no folder that can be written, or has less than twice ``size`` free.
    """
    _check_disk_room(folder, size)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".recipe-disk-") as file:
            number, share = file.fileno(), seconds / 3
            written, write_s = _write_blocks(number, size, share)
            path = Path(file.name)
            _forget_cached_pages(number)
            read, read_s, direct = _read_sequential(path, share)
            _forget_cached_pages(number)
            reads, random_s = _read_windows(number, written, share)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be measured: {error.strerror}.",
            field="disk",
            hint="Name a folder that this user can write.",
        ) from None
    return DiskRates(written / write_s, read / read_s, reads / random_s, written, direct)


def disk_rates(folder: Path, size: int) -> tuple[float | None, float]:
    """Bytes per second of reading a new file there: from the disk, and from the kernel's cache.

    The first is None where the kernel keeps the file in memory all the same (tmpfs, for example).
    A file of ``size`` bytes is written, and removed.

    Raises:
        OSError: when the folder cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        _write_blocks(file.fileno(), size, math.inf)
        _forget_cached_pages(file.fileno())
        reads = [_read_all(Path(file.name), os.O_RDONLY, math.inf) for _ in range(3)]
    cold, *warm = (total / taken_s for total, taken_s in reads)
    return (cold if cold < 0.7 * max(warm) else None), max(warm)


def _check_disk_room(folder: Path, size: int) -> None:
    if not folder.is_dir():
        hint = "Name an existing folder on the storage to measure."
        raise InputError(f"{folder} is not a folder.", field="disk", hint=hint)
    if size < _LEAST_BYTES:
        message = f"{size} bytes are too few to measure a disk."
        raise InputError(message, field="disk", hint=f"Use at least {_LEAST_BYTES}.")
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise InputError(
            f"{folder} has {free / 2**20:,.0f} MiB free; the benchmark writes {size / 2**20:,.0f} "
            "MiB and leaves as much.",
            field="disk",
            hint="Free space there, or name another folder.",
        )


def _write_blocks(number: int, size: int, seconds: float) -> tuple[int, float]:
    """Bytes written until they are on the disk, and the time; at least a few blocks."""
    block, written, start = os.urandom(_BLOCK), 0, time.perf_counter()
    while written < size:
        written += os.write(number, block)
        if written >= _LEAST_BYTES and time.perf_counter() - start > seconds:
            break
    os.fsync(number)
    return written, time.perf_counter() - start


def _forget_cached_pages(number: int) -> None:
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def _read_sequential(path: Path, seconds: float) -> tuple[int, float, bool]:
    """Bytes read in sequence, the time, and whether past the kernel's cache."""
    try:
        total, taken_s = _read_all(path, os.O_RDONLY | os.O_DIRECT, seconds)
    except (OSError, AttributeError):  # a file system in memory, or a system without it
        return *_read_all(path, os.O_RDONLY, seconds), False
    return total, taken_s, True


def _read_all(path: Path, flags: int, seconds: float) -> tuple[int, float]:
    number = os.open(path, flags)
    try:
        with mmap.mmap(-1, _BLOCK) as buffer:  # aligned, as direct reads need it
            total, start = 0, time.perf_counter()
            while count := os.readv(number, [buffer]):
                total += count
                if total >= _LEAST_BYTES and time.perf_counter() - start > seconds:
                    break
            return total, time.perf_counter() - start
    finally:
        os.close(number)


def _read_windows(number: int, size: int, seconds: float) -> tuple[int, float]:
    """Windows read at random places of the mapped file, each at most once, and the time."""
    starts = list(range(0, size - WINDOW_BYTES + 1, WINDOW_BYTES))
    random.Random(0).shuffle(starts)  # noqa: S311 - places, not secrets
    with mmap.mmap(number, size, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        reads, begun = 0, time.perf_counter()
        for start in starts:
            bytes(mapped[start : start + WINDOW_BYTES])
            reads += 1
            if time.perf_counter() - begun > seconds:
                break
        return reads, time.perf_counter() - begun
