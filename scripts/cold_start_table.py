"""Print the tables of docs/method/scaling.md: phases by place, engine and size, and savings.

python scripts/cold_start_table.py
"""

from __future__ import annotations

from recipe_core.base.units import long_duration
from recipe_core.estimates.serving.cold_start import ColdStart, cold_start
from recipe_core.hardware.cluster import device_profile
from recipe_core.request.over_time import Start

PLACES = ("tmpfs", "nvme", "disk", "ebs-gp3", "efs", "s3", "hub")
ENGINES = ("vllm", "sglang", "tensorrt-llm", "tgi", "transformers", "llama-cpp")
SIZES = {"16 GB": (16e9, 1), "141 GB": (141e9, 4)}
WEIGHTS = ("download", "weights")
BEFORE = ("node", "device plugin", "image", "container", "process", "communicators")


def estimated(start: Start, engine: str, size: str) -> ColdStart:
    """A start on H100s."""
    weights_bytes, devices = SIZES[size]
    return cold_start(
        start,
        engine=engine,
        weights_bytes=weights_bytes,
        devices=devices,
        device=device_profile("h100-sxm"),
    )


def start_row(engine: str, place: str, size: str) -> str:
    """A row of the table: what comes before the weights, the weights, what follows, the total."""
    start = estimated(Start(node="ready", weights=place), engine, size)
    weights = sum(part.seconds for part in start.phases if part.name in WEIGHTS)
    before = sum(part.seconds for part in start.phases if part.name in BEFORE)
    after = start.seconds - weights - before
    band = f"{long_duration(start.low_s)} to {long_duration(start.high_s)}"
    cells = [
        engine,
        size,
        place,
        *map(long_duration, (before, weights, after, start.seconds)),
        band,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print both tables."""
    print("| engine | weights | from | process | weights | then | total | 80 % band |")
    print("|---|---|---|---|---|---|---|---|")
    for size in SIZES:
        for place in PLACES:
            print(start_row("vllm", place, size))
        for engine in ENGINES[1:]:
            print(start_row(engine, "nvme", size))
    print("\n| change | saves of 16 GB | saves of 141 GB |\n|---|---|---|")
    small, large = (estimated(Start(), "vllm", size) for size in SIZES)
    of_small = {saving.text: saving.seconds_saved for saving in small.savings}
    for saving in large.savings:
        less = of_small.get(saving.text)
        first = "-" if less is None else long_duration(less)
        print(f"| {saving.text} | {first} | {long_duration(saving.seconds_saved)} |")


if __name__ == "__main__":
    main()
