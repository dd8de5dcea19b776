"""Cold starts: the time until a new replica answers, by phases, and what would shorten it.

    start = node + image + process + weights + compilation + memory profile + graphs + warm-up

Phases follow each other; each is a time or ``bytes / rate``, by ``cold_start.yaml``:

* node: provisioned, then its devices announced; only where a new one is needed.
* image: ``bytes / pull rate``; a fixed time where it is streamed; nothing where it is there.
* process: container, interpreter, imports, configuration; communicators by doublings of ranks.
* download: ``bytes / nodes / (streams · download rate)``, to a drive before anything is read; a
  stream a file, eight at once, files of 5 GB.
* weights: the engine's own loader maps files and reads them in one stream, then the host copies
  each rank's part: ``bytes / nodes / min(place, stream) + bytes / ranks / copy``; from a warm page
  cache only the copy takes time. Parallel loaders overlap both: ``max(bytes / nodes / min(share ·
  place, streams · stream), bytes / ranks / link)``. Streams are slow where each read waits for a
  network. ``disk``, a drive of which nothing is known, has the rate of starts that name none.
* compilation, kernels that are built at first use, profile run, captured graphs (by their number),
  warm-up: measured times, shorter or absent by engine, mode and cache.

Source of the form: loaders' benchmarks and engines' logs (``cold_start.yaml``); its errors are in
docs/method/scaling.md. It leaves out a wait for capacity, rates that several starting replicas
share, and the host's speed. A band holds 80 % of starts of sources that were left out of the fit.
Phases of one start vary apart, and all of a machine together (``sooner``, ``later``: late starts
are later than early ones are early): a total's logarithm has the variance of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.numbers import bounded_integer
from recipe_core.base.provenance import Quantity
from recipe_core.estimates.serving.start_numbers import (
    STREAMS,
    EngineStart,
    Kernels,
    Place,
    StartNumbers,
    engine_start,
    place_by_name,
    start_numbers,
)
from recipe_core.hardware.profile import Device
from recipe_core.request.over_time import Start

GB = 1e9


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a start: seconds with an 80 % band, and where the number is from."""

    name: str
    seconds: float
    low_s: float
    high_s: float
    basis: str


@dataclass(frozen=True, slots=True)
class Saving:
    """One change of a start (a field of ``options.start`` and its value), and what it saves."""

    change: str
    text: str
    seconds_saved: float


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Phases in their order, their total with an 80 % band, and savings, the largest first."""

    phases: tuple[Phase, ...]
    seconds: float
    low_s: float
    high_s: float
    savings: tuple[Saving, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Its fields as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setup:
    """The thing that starts, besides where it starts from.

    ``link_bytes_per_s``: from a host to one device. ``kernels``: those that are built at first use:
    none, those of a format that the device multiplies (``native``), or of one that it does not
    (``other``). ``compiles`` and ``captures``: as the engine and the mode (eager) have it.
    ``place``: where weights are read from. ``graphs``: share of the usual batches that is captured.
    """

    engine: EngineStart
    weights_bytes: float
    devices: int
    nodes: int
    link_bytes_per_s: float
    place: Place
    kernels: Kernels = "none"
    compiles: bool = False
    captures: bool = True
    graphs: float = 1.0


def cold_start(
    start: Start,
    *,
    engine: str,
    weights_bytes: float,
    devices: int,
    nodes: int = 1,
    device: Device | None = None,
    weight_dtype: str | None = None,
    eager: bool = False,
    graphs: float = 1.0,
) -> ColdStart:
    """A start by phases, with what each change of it would save.

    Args:
        start: what the replica finds.
        engine: by name.
        weights_bytes: of the checkpoint, which all devices of the replica share.
        devices: of the replica.
        nodes: that they are on.
        device: its profile; without one the rates of an ordinary accelerator hold.
        weight_dtype: number format of the weights; kernels of some are built at first use.
        eager: whether code is neither compiled nor captured.
        graphs: batches that are captured over those of the engine's default.

    Raises:
        InputError: for a place that does not exist, or numbers that cannot be.
    """
    if not (math.isfinite(weights_bytes) and weights_bytes >= 0):
        hint = "Give the bytes of the checkpoint, 0 or more."
        raise InputError(
            f"weights_bytes {weights_bytes} is no size.", field="weights_bytes", hint=hint
        )
    setup = _cold_start_setup(engine, weights_bytes, devices, nodes, device, weight_dtype, eager)
    setup = replace(setup, graphs=graphs)
    whole_start = evaluate_cold_start(start, setup)
    return replace(whole_start, savings=tuple(_savings(start, setup, whole_start.seconds)))


def _cold_start_setup(
    engine: str,
    weights_bytes: float,
    devices: int,
    nodes: int,
    device: Device | None,
    weight_dtype: str | None,
    eager: bool,
) -> Setup:
    numbers, behaviour = start_numbers(), engine_start(engine)
    captures_here = device is None or device.runtime in numbers.captures_on
    return Setup(
        engine=behaviour,
        weights_bytes=weights_bytes,
        devices=bounded_integer("devices", devices),
        nodes=bounded_integer("nodes", nodes),
        link_bytes_per_s=link_bytes_per_s(device),
        place=place_by_name("nvme"),
        kernels=kernels_of(weight_dtype, device),
        compiles=behaviour.compiles and not eager,
        captures=behaviour.captures and captures_here and not eager,
    )


def kernels_of(weight_dtype: str | None, device: Device | None) -> Kernels:
    """Return which kernels are built at first use for weights of a format on a device."""
    if weight_dtype not in start_numbers().built_at_first_use:
        return "none"
    native = device is None or weight_dtype.partition("-")[0] in device.peak_flops_per_s
    return "native" if native else "other"


def link_bytes_per_s(device: Device | None) -> float:
    """Rate of copies to one device: measured, else that of its architecture's link."""
    numbers = start_numbers()
    if device is None:
        return numbers.link_bytes_per_s["any"].value
    if device.transfers and device.transfers.to_device_bytes_per_s:
        return device.transfers.to_device_bytes_per_s.value
    rates = numbers.link_bytes_per_s
    return rates.get(device.architecture, rates["any"]).value


def weights_place(start: Start, nodes: int = 1) -> Place:
    """Return where a start reads weights: as stated, else the hub on a new node, a drive on one."""
    return place_by_name(start.weights or ("hub" if start.node == "new" else "disk"), nodes)


def image_of(start: Start) -> str:
    """Say how a start gets its image: as stated, else it pulls on a new node and has it on one."""
    return start.image or ("pull" if start.node == "new" else "cached")


def evaluate_cold_start(
    start: Start, setup: Setup, numbers: StartNumbers | None = None
) -> ColdStart:
    """The phases of a start and their total; ``setup.place`` is taken from the start.

    ``numbers``: others than those shipped, for a fit.
    """
    placed = replace(setup, place=weights_place(start, setup.nodes))
    return total_of(tuple(phases(start, placed, numbers)), numbers)


def total_of(parts: tuple[Phase, ...], numbers: StartNumbers | None = None) -> ColdStart:
    """The sum of phases, with the band of a lognormal of the same variance to either side."""
    seconds = sum(part.seconds for part in parts)
    if not seconds:
        return ColdStart(parts, 0.0, 0.0, 0.0)
    bands = (numbers or start_numbers()).bands
    variance = sum((part.seconds * math.log(part.high_s / part.seconds)) ** 2 for part in parts)
    low, high = (
        math.exp(math.hypot(math.sqrt(variance) / seconds, math.log(machines)))
        for machines in (bands.sooner, bands.later)
    )
    return ColdStart(parts, seconds, seconds / low, seconds * high)


def phases(start: Start, setup: Setup, numbers: StartNumbers | None = None) -> Iterator[Phase]:
    """The phases of a start that take time, in their order; ``setup.place`` counts."""
    of = numbers or start_numbers()
    if start.wake.startswith("sleep"):
        yield from _wake_phases(start, setup, of)
    else:
        yield from _machine_phases(start, setup, of)
        if start.wake == "snapshot":
            size = setup.weights_bytes / setup.nodes
            yield _restore_phase(size, setup, of)
        else:
            yield from _process_phases(setup, of)
            yield from weights_phases(start, setup, of)
            yield from engine_phases(start, setup, of)
            yield _phase(of, "warm-up", 1.0, of.warm_up_s)
    if start.extra_s:
        yield Phase("extra", start.extra_s, start.extra_s, start.extra_s, "stated in the request")


def _machine_phases(start: Start, setup: Setup, of: StartNumbers) -> Iterator[Phase]:
    """Node, devices and image."""
    if start.node == "new":
        yield _phase(of, "node", 1.0, of.node_s)
        yield _phase(of, "device plugin", 1.0, of.device_plugin_s)
    image = image_of(start)
    if image == "pull":
        seconds = setup.engine.image_bytes / of.pull_bytes_per_s.value
        yield _timed_phase(of, "image", seconds, of.pull_bytes_per_s)
    elif image == "streamed":
        yield _phase(of, "image", 1.0, of.streamed_s)
    yield _phase(of, "container", 1.0, of.container_s)


def _process_phases(setup: Setup, of: StartNumbers) -> Iterator[Phase]:
    """Interpreter, imports and configuration, and communicators of several ranks."""
    yield _phase(of, "process", setup.engine.process, of.process_s, setup.engine.status)
    if setup.devices > 1:
        yield _phase(of, "communicators", math.log2(setup.devices), of.ranks_s)


def weights_phases(start: Start, setup: Setup, of: StartNumbers) -> Iterator[Phase]:
    """Download and reading of weights; after a download they lie in the kernel's cache."""
    if not setup.weights_bytes:
        return
    source = setup.place
    downloads = source.download or (source.medium == "object" and start.loader == "default")
    if downloads:
        size = setup.weights_bytes / setup.nodes
        files = math.ceil(size / of.file_bytes.value)
        streams = min(files, of.download_streams.value)
        seconds = size / min(streams * of.download_bytes_per_s.value, source.bytes_per_s)
        yield _timed_phase(of, "download", seconds, of.download_bytes_per_s)
        source = place_by_name("tmpfs")
    seconds, bound = _read_s(start, replace(setup, place=source), of)
    band = "disk" if source.medium == "disk" else "weights"
    yield _timed_phase(of, "weights", seconds, bound, band=band)


def _read_s(start: Start, setup: Setup, of: StartNumbers) -> tuple[float, Quantity]:
    """Seconds from a place into all devices, and the number that bounds them."""
    source = setup.place
    if source.medium == "disk":
        source = replace(source, bytes_per_s=of.disk_bytes_per_s.value)
    per_node = setup.weights_bytes / setup.nodes
    per_rank = setup.weights_bytes / setup.devices
    stream = of.stream_bytes_per_s[STREAMS[source.medium]]
    streams = of.streams[start.loader].value
    if start.loader == "default":
        if not (setup.engine.prefetches and source.medium == "network"):
            read_s = per_node / min(source.bytes_per_s, stream.value)
            copy_s = per_rank / of.copy_bytes_per_s.value
            return read_s + copy_s, stream if read_s > copy_s else of.copy_bytes_per_s
        streams = of.prefetch_streams.value
    share = source.bytes_per_s
    if source.medium in ("drive", "disk"):  # of others the rate is what they deliver
        share *= of.read_share.value
    read_s = per_node / min(share, streams * stream.value)
    link_s = per_rank / setup.link_bytes_per_s
    return max(read_s, link_s), stream if streams * stream.value < share else of.read_share


def engine_phases(start: Start, setup: Setup, of: StartNumbers) -> Iterator[Phase]:
    """Yield what an engine does after its weights are there: compile, build, profile, capture."""
    status = setup.engine.status
    if setup.engine.builds:
        per_rank = setup.weights_bytes / setup.devices / GB  # ranks build side by side
        yield _phase(of, "engine build", per_rank, of.build_s_per_gb, status)
    if setup.compiles:
        code = of.compile_cached_s if start.compile_cache else of.compile_s
        yield _phase(of, "compilation", 1.0, code, status)
    if setup.kernels != "none" and not start.compile_cache:
        yield _phase(of, "kernels", 1.0, of.kernels_s[setup.kernels], status)
    if setup.engine.profiles:
        yield _phase(of, "memory profile", 1.0, of.profile_s, status)
    if setup.captures:
        yield _phase(of, "graphs", setup.graphs, of.graphs_s, status)


def _wake_phases(start: Start, setup: Setup, of: StartNumbers) -> Iterator[Phase]:
    """A sleeping engine: its weights go back over the links, or are read again (level 2)."""
    rate = of.wake_share.value * setup.link_bytes_per_s
    if start.wake == "sleep-1":
        seconds = of.wake_s.value + setup.weights_bytes / setup.devices / rate
        yield _timed_phase(of, "wake", seconds, of.wake_share)
    else:
        yield _phase(of, "wake", 1.0, of.wake_s)
        yield from weights_phases(start, setup, of)


def _restore_phase(size: float, setup: Setup, of: StartNumbers) -> Phase:
    """A snapshot of the process: a fixed time and its bytes, by the place's rate at most."""
    rate = min(of.restore_bytes_per_s.value, setup.place.bytes_per_s)
    return _timed_phase(of, "restore", of.restore_s.value + size / rate, of.restore_bytes_per_s)


# Phases that share a band of ``cold_start.yaml``.
_ALIKE = {
    "machine": ("node", "device plugin", "image", "container"),
    "process": ("process", "communicators", "warm-up"),
    "engine": ("engine build", "compilation", "memory profile", "graphs"),
}
BAND_OF = {phase: band for band, phases_of in _ALIKE.items() for phase in phases_of}


def _phase(
    of: StartNumbers, name: str, amount: float, quantity: Quantity, status: str = "measured"
) -> Phase:
    return _timed_phase(of, name, amount * quantity.value, quantity, status)


def _timed_phase(
    of: StartNumbers,
    name: str,
    seconds: float,
    quantity: Quantity,
    status: str = "measured",
    band: str = "",
) -> Phase:
    basis = quantity.status if status != "assumed" else "assumed"
    factor = of.bands.phases[band or BAND_OF.get(name, name)]
    text = f"{basis}: {of.sources[quantity.source].title}"
    return Phase(name, seconds, seconds / factor, seconds * factor, text)


# What one change saves

CHANGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("node", "keep a node ready", {"node": "ready"}),
    ("image", "keep the image on the node", {"image": "cached"}),
    ("image", "stream the image", {"image": "streamed"}),
    ("weights", "keep the weights on a drive of the node", {"weights": "nvme"}),
    ("weights", "keep the weights in the node's memory", {"weights": "tmpfs"}),
    ("loader", "read the weights by a parallel loader", {"loader": "streamer"}),
    ("compile_cache", "keep the cache of compiled code", {"compile_cache": True}),
    ("wake", "restore a snapshot of the process", {"wake": "snapshot"}),
    ("wake", "let the engine sleep, weights in memory", {"wake": "sleep-1"}),
)
# Savings below this are none.
LEAST_S = 0.5


def _savings(start: Start, setup: Setup, seconds: float) -> Iterator[Saving]:
    """Every single change that makes the start shorter, evaluated; the largest saving first."""
    sources = {"image": image_of(start), "weights": weights_place(start).name}
    savings = []
    for field, text, update in CHANGES:
        if field == "wake" and start.wake != "cold":
            continue
        # A ready node alone saves neither a pull nor a download: they are changes of their own.
        changed = start.model_copy(update=(sources if field == "node" else {}) | update)
        saved = seconds - evaluate_cold_start(changed, setup).seconds
        if saved >= LEAST_S:
            savings.append(Saving(f"{field}: {update[field]}", text, saved))
    yield from sorted(savings, key=lambda saving: -saving.seconds_saved)
