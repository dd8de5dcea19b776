"""How much memory this process takes, and a limit on how much more it may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def process_resident_bytes() -> int:
    """Memory of this process that lies in RAM; 0 where the system does not tell."""
    return _statm_bytes(1)


@contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Let allocations fail (MemoryError) that need more than this beyond what the process has now.

    It holds for all threads of the process; a limit that is there already may be narrower.
    """
    before, has = None, _statm_bytes(5)
    with suppress(ImportError, ValueError, OSError):
        import resource

        kind = resource.RLIMIT_DATA  # private writable memory, as the sixth column of statm
        soft, hard = resource.getrlimit(kind)
        if has:
            limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min([has + more_bytes, *limits]), hard))
            before = soft, hard
    try:
        yield
    finally:
        if before is not None:
            resource.setrlimit(kind, before)


def _statm_bytes(column: int) -> int:
    """A column of the kernel's page counts of this process, in bytes; 0 where there are none."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - read between chunks
            return int(file.read().split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
