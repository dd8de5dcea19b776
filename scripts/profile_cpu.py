"""Measure this machine's CPU as ``hw_profiles/cpu.yaml`` states it: rates of matrix products and of
reading memory.

    python scripts/profile_cpu.py

Prints the best of several runs; run it on an idle machine (any other busy process spoils it).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch


def best_s(work: Callable[[], object], runs: int = 9) -> float:
    """Shortest time of ``work`` over several runs, after one that is not counted."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


@torch.no_grad()
def main() -> None:
    threads = torch.get_num_threads()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(
        f"threads {threads}, torch {torch.__version__}, memory_bytes {memory}, "
        f"busy {os.getloadavg()[0]:.2f}"
    )
    for dtype in (torch.float32, torch.bfloat16):
        a, w = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
        rate = 2 * 2048**3 / best_s(lambda a=a, w=w: torch.nn.functional.linear(a, w), 5)
        print(f"{dtype}: 2048 x 2048 x 2048 at {rate / 1e9:.0f} GFLOP/s")
        for width in (384, 1024, 4096):
            weights = [
                torch.randn(width, width).to(dtype)
                for _ in range(max(2, (256 << 20) // (width * width * 4)))
            ]
            x = torch.randn(1, width).to(dtype)
            best_seconds = best_s(
                lambda x=x, weights=weights: [
                    torch.nn.functional.linear(x, weight) for weight in weights
                ]
            ) / len(weights)
            rate = weights[0].nbytes / best_seconds / 1e9
            print(
                f"{dtype}: one row times {width} x {width}, weights not in cache: "
                f"{best_seconds * 1e6:.1f} us, {rate:.1f} GB/s"
            )
    big = torch.randn(128 << 20)
    print(f"reading 512 MiB: {big.nbytes / best_s(big.sum) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
