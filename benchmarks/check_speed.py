"""Speed of reading and judging commands: ``python benchmarks/check_speed.py [COUNT [MODELS]]``.

The commands are of any MODELS models of the catalog (all without a number, which is the hard case:
what is computed once a model and engine is shared by few).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from recipe_core.commands.judge import Item, judge_items
from recipe_core.commands.launches import find_launches
from recipe_core.commands.words import read_script
from recipe_core.models.catalog import catalog_ids

SEED = 20260101


def command(pick: random.Random, models: list[str]) -> str:
    """A command like those in catalogs: any model, four degrees, some limits, rarely a bad flag."""
    model, tp = pick.choice(models), pick.choice((1, 2, 4, 8))
    limits = [
        f"--max-model-len {pick.choice((4096, 8192, 16384, 32768))}",
        f"--gpu-memory-utilization {pick.choice((0.85, 0.9, 0.95))}",
        f"--max-num-seqs {pick.choice((64, 128, 256))}",
        "--enable-expert-parallel" if pick.random() < 0.2 else "--enable-prefix-caching",
        "--swap-space 4" if pick.random() < 0.1 else "--trust-remote-code",
    ]
    if pick.random() < 0.3:
        return (
            f"python3 -m sglang.launch_server --model-path {model} --tp {tp} "
            "--mem-fraction-static 0.85 --context-length 8192"
        )
    image = (
        "docker run --gpus all --ipc=host -p 8000:8000 vllm/vllm-openai:v0.32.0 --model"
        if pick.random() < 0.3
        else "vllm serve"
    )
    return " ".join([image, model, f"--tensor-parallel-size {tp}", *pick.sample(limits, 3)])


def timed(label: str, count: int, run: Callable[[], list[Any]]) -> list[Any]:
    """Run and print commands per second, by the clock and by this process's own time (other
    programs may be running).
    """
    wall, cpu = time.perf_counter(), time.process_time()
    out = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{label:9} {count / wall:10,.0f} commands/s by the clock, "
        f"{count / cpu:10,.0f} by processor time"
    )
    return out


def main(count: int = 3000, some: int | None = None) -> None:
    pick = random.Random(SEED)
    models = catalog_ids() if some is None else pick.sample(catalog_ids(), some)
    commands = [command(pick, models) for _ in range(count)]
    items, usual = [Item("", text) for text in commands], {"hardware": "h100-sxm:8"}
    judge_items(items[:20], usual, folders=False)  # tables and a few models are read once
    timed("words", count, lambda: [find_launches(read_script(text)) for text in commands])
    answers = timed("verdicts", count, lambda: judge_items(items, usual, folders=False))
    verdicts = [answer[0].get("verdict", "error") for answer in answers]
    print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
