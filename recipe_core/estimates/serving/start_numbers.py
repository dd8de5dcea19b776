"""``cold_start.yaml``: the few rates and times that cold starts are made of, and their bands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Quantity, Sourced, Status
from recipe_core.base.types import WeightDtype
from recipe_core.engines.spec import engine as engine_named
from recipe_core.hardware.host import storage_names, storage_tier
from recipe_core.hardware.profile import Runtime

FILE = DataFile(Path(__file__).with_name("cold_start.yaml"), "options.start")
FIELD = "options.start.weights"

Medium = Literal["drive", "disk", "volume", "network", "object", "memory"]
Stream = Literal["drive", "network", "object", "memory"]
Kernels = Literal["none", "native", "other"]
Loader = Literal["default", "streamer", "fastsafetensors", "instanttensor"]
ANY = "any"
# What a stream of reads waits for: a volume is reached over a network too.
STREAMS: Mapping[Medium, Stream] = {
    "drive": "drive",
    "disk": "drive",
    "volume": "network",
    "network": "network",
    "object": "object",
    "memory": "memory",
}
# What reads of a kind of storage tier are like.
MEDIA: Mapping[str, Medium] = {
    "local": "drive",
    "volume": "volume",
    "network": "network",
    "object": "object",
}


Factor = Annotated[float, Field(ge=1, le=1000)]


class StartBands(DataRow):
    """80 % bands as factors of the middle, from starts of sources that no number was fitted on.

    ``phases``: of phases that vary alike, from ``value / factor`` to ``value · factor``; ``disk``:
    of weights on a drive of which nothing is known. ``sooner`` and ``later``: by what whole starts
    of different machines differ beyond their phases, to either side.
    """

    source: str
    status: Status
    phases: dict[str, Factor]
    sooner: Factor
    later: Factor


class PlaceData(DataRow):
    """A place of weights besides storage tiers; bytes per second that a node reads of it."""

    medium: Medium
    bytes_per_s: Quantity
    download: bool = False
    """Whether files are copied to the node's drive before an engine reads them."""


class EngineStart(DataRow):
    """The start of an engine; other engines' phases are not measured (``status``).

    ``process``: its time over that of vLLM. ``compiles``: code of the model's layers. ``profiles``:
    runs the largest step to measure memory. ``captures``: CUDA graphs. ``builds``: an engine file.
    ``prefetches``: files of a network file system are read by several threads.
    """

    process: Annotated[float, Field(gt=0, le=10)] = 1.0
    compiles: bool = False
    profiles: bool = True
    captures: bool = True
    builds: bool = False
    prefetches: bool = False
    image_bytes: Annotated[float, Field(gt=0)]
    source: str
    status: Status
    note: str | None = None


class StartNumbers(Sourced):
    """All numbers of cold starts; see the file for what each was read or fitted from."""

    node_s: Quantity
    device_plugin_s: Quantity
    pull_bytes_per_s: Quantity
    streamed_s: Quantity
    container_s: Quantity
    process_s: Quantity
    ranks_s: Quantity
    download_bytes_per_s: Quantity
    download_streams: Quantity
    file_bytes: Quantity
    stream_bytes_per_s: dict[Stream, Quantity]
    copy_bytes_per_s: Quantity
    disk_bytes_per_s: Quantity
    read_share: Quantity
    streams: dict[Loader, Quantity]
    prefetch_streams: Quantity
    link_bytes_per_s: dict[str, Quantity]
    captures_on: tuple[Runtime, ...]
    compile_s: Quantity
    compile_cached_s: Quantity
    built_at_first_use: tuple[WeightDtype, ...]
    kernels_s: dict[Literal["native", "other"], Quantity]
    profile_s: Quantity
    graphs_s: Quantity
    build_s_per_gb: Quantity
    warm_up_s: Quantity
    wake_s: Quantity
    wake_share: Quantity
    restore_s: Quantity
    restore_bytes_per_s: Quantity
    bands: StartBands
    places: dict[str, PlaceData]
    engines: dict[str, EngineStart]


@cache
def start_numbers() -> StartNumbers:
    """The shipped numbers.

    Raises:
        InputError: for a damaged file, naming the field and the fix.
    """
    return FILE.read_as(StartNumbers)


@dataclass(frozen=True, slots=True)
class Place:
    """The place weights are read from: its medium, and what a node reads of it at most."""

    name: str
    medium: Medium
    bytes_per_s: float
    download: bool = False


def place_names() -> list[str]:
    """Names that ``options.start.weights`` takes, sorted."""
    return sorted({*storage_names(), *start_numbers().places})


def place_by_name(name: str, nodes: int = 1) -> Place:
    """A place by name; the rate is a node's while ``nodes`` read at once.

    Raises:
        InputError: for a name that is neither a storage tier nor one of ``cold_start.yaml``.
    """
    places = start_numbers().places
    if name in places:
        data = places[name]
        return Place(name, data.medium, data.bytes_per_s.value, data.download)
    if name not in storage_names():
        message, hint = unknown("place of weights", name, place_names())
        raise InputError(message, field=FIELD, hint=hint)
    tier = storage_tier(name)
    return Place(name, MEDIA[tier.kind], float(tier.read_rate(nodes)) / nodes)


def engine_start(name: str) -> EngineStart:
    """Return what an engine does when it starts; one that wraps another starts as that one does.

    An engine that the file does not name takes what holds of ``any``, an assumption.

    Raises:
        InputError: for an unknown engine.
    """
    engines = start_numbers().engines
    if name in engines:
        return engines[name]
    return engines.get(engine_named(name).wraps or name, engines[ANY])
