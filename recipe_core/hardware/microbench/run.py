"""All micro-benchmarks of one machine, within a total time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.hardware.microbench.collectives import Reduced, measure_collectives
from recipe_core.hardware.microbench.disk import DiskRates, disk_rates
from recipe_core.hardware.microbench.host import HostTimes, measure_host
from recipe_core.hardware.microbench.points import (
    Bench,
    Case,
    Clock,
    Deadline,
    EventClock,
    HostClock,
    Point,
    Timing,
    Work,
    measure_cases,
    time_work,
)
from recipe_core.payload.launcher import machine

READ_BYTES = 1 << 28
COPY_BYTES = 1 << 27


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


Kind = Literal["cuda", "rocm", "cpu"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FULL_S, QUICK_S = 180.0, 20.0
LEAST_S = 5.0
MOST_RANKS = 64
# Products without which there is no profile, measured however late it is: up to 128 rows.
NEEDED_PRODUCTS = 18
# Seconds of the total that starting the program, fitting and writing take.
_FINISH_S = 3.0
_DEFAULT_CACHE = float(32 << 20)


@dataclass
class Measured:
    """The results of the micro-benchmarks.

    ``load``: processes that wanted a processor in the minute before, and ``load_after`` in the one
    that ended with them, which counts the benchmarks themselves.
    """

    kind: Kind
    torch: str
    cpus: int
    load: float
    points: list[Point]
    bandwidth_bytes_per_s: float
    bandwidth_timing: Timing
    launch_s: float
    host: HostTimes
    host_at_end: HostTimes | None = None
    to_device_bytes_per_s: float | None = None
    from_device_bytes_per_s: float | None = None
    disk_cold_bytes_per_s: float | None = None
    disk_warm_bytes_per_s: float | None = None
    disk: DiskRates | None = None
    collectives: list[Reduced] = field(default_factory=list)
    load_after: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def check_torch() -> None:
    """Refuse where torch is missing.

    Raises:
        NoAnswer: says how to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise NoAnswer(
            "torch is not installed, and the benchmarks run in it.",
            hint="pip install 'recipe-builder[torch]', or pip install torch as pytorch.org says "
            "for your device; then profile again.",
        )


def device_kind(name: str | None) -> Kind:
    """The device to measure: the one that is named, else an accelerator where torch sees one.

    Raises:
        InputError: for an unknown name, or a device that torch does not see.
    """
    if name is not None and name not in KINDS:
        hint = f"Use {', '.join(KINDS)}, or leave it out."
        raise InputError(f"{name!r} is not a device.", field="device", hint=hint)
    import torch

    visible_kind: Kind = "cpu"
    if torch.cuda.is_available():
        visible_kind = "rocm" if torch.version.hip else "cuda"
    if name not in (None, "cpu", visible_kind):
        visible_text = (
            f"it sees {visible_kind}" if visible_kind != "cpu" else "it sees no accelerator"
        )
        raise InputError(
            f"torch {torch.__version__} does not see a {name} device; {visible_text}.",
            field="device",
            hint=f"Install torch for {name} (pytorch.org) and its driver, or use "
            f"--device {visible_kind}.",
        )
    return name or visible_kind


def bench_of(kind: Kind) -> Bench:
    """The device in torch's words."""
    import torch

    if kind == "cpu":
        memory = machine.host_memory_bytes()[1] or 1 << 30
        return Bench(torch.device("cpu"), HostClock(), cpu_cache_bytes(), float(memory))
    properties = torch.cuda.get_device_properties(0)
    cache = float(getattr(properties, "L2_cache_size", 0) or _DEFAULT_CACHE)
    clock: Clock = EventClock(torch.cuda)
    return Bench(torch.device("cuda", 0), clock, cache, float(torch.cuda.mem_get_info(0)[0]))


def cpu_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> float:
    """Bytes of the largest cache of the first processor; 32 MiB where the kernel does not say."""
    sizes = []
    for path in folder.glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) * (1 << 10 if text[-1] == "K" else 1 << 20))
    return float(max(sizes, default=_DEFAULT_CACHE))


def measure_device(
    kind: Kind, deadline: Deadline, *, quick: bool, ranks: int, tell: Callable[[str], None]
) -> Measured:
    """Run the benchmarks of a device; at most until the deadline, less what fitting takes.

    ``ranks``: processes for the collectives; fewer than 2 leaves them out.

    Raises:
        InputError: for ``ranks`` out of range.
        NoAnswer: when a part that a profile needs could not be measured.
    """
    if not 0 <= ranks <= MOST_RANKS:
        hint = f"Use 2 to {MOST_RANKS}, or leave it out."
        raise InputError(f"{ranks} ranks are not possible.", field="ranks", hint=hint)
    load = os.getloadavg()[0]
    import torch

    torch.manual_seed(0)
    bench, notes = bench_of(kind), list[str]()
    deadline.seconds -= _FINISH_S
    reduced = _measure_ranks(kind, ranks, deadline, notes, tell)
    tell("host: steps, tokens and requests of a small serving loop")
    total_s = deadline.left_s
    host = measure_host(deadline, 0.17 * total_s)
    tell("memory bandwidth")
    bandwidth, timing = memory_bandwidth(bench, 0.03 * total_s)
    with torch.inference_mode():
        points = _measure_operators(bench, deadline, total_s, notes, quick, tell)
    tell("memory bandwidth again, launches, copies, disk")
    later, again = memory_bandwidth(bench, 0.02 * total_s)
    measurements = Measured(
        kind=kind,
        torch=str(torch.__version__),
        cpus=len(os.sched_getaffinity(0)),
        load=load,
        points=points,
        bandwidth_bytes_per_s=max(bandwidth, later),
        bandwidth_timing=timing if bandwidth >= later else again,
        launch_s=launch_s(bench, 0.01 * total_s),
        host=host,
        collectives=reduced,
        notes=notes,
    )
    if bench.accelerated:
        copied = host_copies(bench, 0.03 * total_s)
        measurements.to_device_bytes_per_s, measurements.from_device_bytes_per_s = copied
    _read_disk(measurements, quick)
    tell("host again")
    measurements.host_at_end = measure_host(deadline, max(0.0, deadline.left_s - 2.0))
    measurements.load_after, measurements.seconds = os.getloadavg()[0], deadline.spent_s
    return measurements


def _measure_ranks(
    kind: Kind, ranks: int, deadline: Deadline, notes: list[str], tell: Callable[[str], None]
) -> list[Reduced]:
    """Collectives between ranks; a note where they fail."""
    if ranks <= 1:
        return []
    tell(f"collectives between {ranks} ranks")
    share = min(15.0, 0.1 * deadline.left_s)
    backend = "gloo" if kind == "cpu" else "nccl"  # torch calls RCCL nccl
    reduced = measure_collectives(ranks, backend, share)
    if not reduced:
        notes.append(f"collectives were not measured: torchrun with {ranks} ranks failed")
    return reduced


def _measure_operators(
    bench: Bench,
    deadline: Deadline,
    total_s: float,
    notes: list[str],
    quick: bool,
    tell: Callable[[str], None],
) -> list[Point]:
    from recipe_core.hardware.microbench import operators

    sections: tuple[tuple[str, list[Case], float, int], ...] = (
        ("matrix products", operators.product_cases(bench, quick), 0.34, NEEDED_PRODUCTS),
        ("attention over prompts", operators.prefill_cases(bench, quick), 0.08, 0),
        ("attention over caches", operators.decode_cases(bench, quick), 0.08, 0),
        ("elementwise", operators.elementwise_cases(bench, quick), 0.03, 0),
    )
    points: list[Point] = []
    for title, cases, share, needed in sections:
        tell(title)
        points += measure_cases(cases, bench, deadline, share * total_s, notes, needed=needed)
    return points


def _read_disk(measurements: Measured, quick: bool) -> None:
    """Disk rates of the model cache; a note where its disk cannot be written."""
    folder = existing_parent(model_cache())
    try:
        cold, warm = disk_rates(folder, (1 << 25) if quick else (1 << 28))
    except OSError as error:
        measurements.notes.append(f"the disk of the model cache was not measured: {error.strerror}")
        return
    measurements.disk_cold_bytes_per_s, measurements.disk_warm_bytes_per_s = cold, warm
    if cold is None:
        measurements.notes.append(
            "the disk of the model cache reads no slower than memory: no cold rate"
        )
