"""The schema of ``hw_profiles/``: devices, fabrics, offers, with units and sources.

Units are SI and stand in the key. Memory is what the driver reports, not the marketing figure (an
"80 GB" H100 has 81,559 MiB).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Quantity, Remark, Sourced, Status

Model = TypeVar("Model", bound=BaseModel)


def read_profile_file(path: Path, schema: type[Model]) -> Model:
    """A file as its schema.

    Raises:
        HardwareError: names the file, the field, its value and the fix.
    """
    return profile_data_file(path).read_as(schema)


def profile_data_file(path: Path) -> DataFile:
    """A file of ``hw_profiles/``, whose problems are HardwareErrors."""
    return DataFile(path, "hardware", HardwareError)


def files_by_name(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


Vendor = Literal["nvidia", "amd", "intel", "apple", "google", "aws", "cpu"]
Runtime = Literal["cuda", "rocm", "hpu", "xpu", "npu", "metal", "tpu", "neuron", "cpu"]
# What programs the devices of a vendor: of Intel, Gaudi (hpu), GPUs (xpu) and NPUs.
RUNTIMES: dict[Vendor, tuple[Runtime, ...]] = {
    "nvidia": ("cuda",),
    "amd": ("rocm",),
    "intel": ("hpu", "xpu", "npu"),
    "apple": ("metal",),
    "google": ("tpu",),
    "aws": ("neuron",),
    "cpu": ("cpu",),
}
# For whom a maker sells a device.
Segment = Literal["data-centre", "workstation", "consumer", "edge"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8", "fp8-block", "int8", "int4", "mxfp4", "nvfp4"]
Family = Literal[
    "gemm",
    "moe",
    "attention_prefill",
    "attention_decode",
    "mla_prefill",
    "mla_decode",
    "elementwise",
]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=64)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Commitment = Literal["on-demand", "spot", "reserved"]
# One line of text that is safe in files of many formats: no markup, no templates.
Line = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f<>{}`]*$")]
Shared = Annotated[float, Field(ge=1e-4, le=1)]
# A time over that of the reference.
Ratio = Annotated[float, Field(ge=0.01, le=1000)]


def _is_absent(value: object) -> bool:
    """Return whether a field is left out of what is written, so that digests stay as they are."""
    return value is None


class Roofline(DataRow):
    """Shape of an operator's time, ``overhead_s + (t_compute^r + t_memory^r)^(1/r)``.

    r = ``smoothing``.

    ``t_compute = flops / (peak · compute_efficiency)``, ``t_memory = bytes / (bandwidth ·
    memory_efficiency)``.

    The moe family has two more. ``row_efficiency``: share of the bandwidth at which rows are copied
    to their experts, activated and summed, which nothing overlaps (None: as ``memory_efficiency``).
    ``sort_s``: what sorting the tokens by expert adds to the overhead where there are many.
    """

    compute_efficiency: Shared
    memory_efficiency: Shared
    overhead_s: Annotated[float, Field(ge=0, lt=1)]
    smoothing: Annotated[float, Field(ge=1, le=20)]
    row_efficiency: Shared | None = None
    sort_s: Annotated[float, Field(ge=0, lt=1)] = 0.0
    source: str
    status: Status
    note: Remark | None = None


class HostSpeed(DataRow):
    """The speed of a device's host: its times over those of the reference.

    The reference is the machine on which the engines' overheads were measured. ``layers``: what
    Python and the framework do for a layer of a step; ``sequences``: what a server does for a token
    of each sequence, beside other threads and the client; ``requests``: what it does for a request
    before it is scheduled. ``spread``: standard deviation of the logarithm of timings that were
    repeated over the whole profile, by which intervals widen.
    """

    layers: Ratio = 1.0
    sequences: Ratio = 1.0
    requests: Ratio = 1.0
    spread: Annotated[float, Field(ge=0, le=2)] = 0.0
    source: str
    status: Status
    note: Remark | None = None


class Transfers(DataRow):
    """Rates of what is moved before a device computes; no estimate of a step depends on them.

    ``to_device`` and ``from_device``: copies from and to pinned host memory. ``disk_cold`` and
    ``disk_warm``: reading a file of the model cache from the disk, and from the kernel's cache.
    """

    to_device_bytes_per_s: Quantity | None = None
    from_device_bytes_per_s: Quantity | None = None
    disk_cold_bytes_per_s: Quantity | None = None
    disk_warm_bytes_per_s: Quantity | None = None


class Disk(DataRow):
    """Storage of the machine that `recipe profile --disk` measured, for data and checkpoints.

    ``window_reads_per_s``: reads of 8 KiB at random places of a mapped file, by one thread.
    """

    read_bytes_per_s: Quantity
    write_bytes_per_s: Quantity
    window_reads_per_s: Quantity


class Collectives(DataRow):
    """The rates that the collective library reached between the devices of this machine.

    In place of the figures of the same names of the node's fabric (`Fabric`), whose direct kernels
    it leaves out where there are none (``direct`` stays the fabric's).
    """

    efficiency: Annotated[Quantity, Field(description="achieved / datasheet rate of the fabric")]
    latency_s: Quantity
    latency_per_rank_s: Quantity


class NodeSpec(DataRow):
    """The usual machine of the device: how many share it, what joins them, and its network.

    ``alternatives``: other fabrics the device is sold with, to be named in a request.
    ``collectives``: what was measured over ``fabric``, and counts instead of its figures.
    """

    devices: Annotated[int, Field(ge=1, le=128)]
    fabric: Name
    alternatives: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    network: Name
    host_memory_bytes: Quantity | None = None
    collectives: Annotated[Collectives | None, Field(exclude_if=_is_absent)] = None


class SliceOf(DataRow):
    """That a profile is a part of a device: which, as its vendor calls it, and its share of it."""

    device: Name
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=32)]
    kind: Literal["mig", "partition"]
    share: Annotated[float, Field(gt=0, le=1)]


class Announced(DataRow):
    """That a vendor has said what a device will be, and when; nobody has measured one."""

    date: Annotated[str, Field(pattern=r"^20\d\d(-\d\d){0,2}$")]
    source: str


class Device(Sourced):
    """One accelerator (or a CPU machine) as a file of ``hw_profiles/``.

    ``peak_flops_per_s`` are dense rates by compute dtype; a dtype that is absent is not multiplied
    natively. ``memory_bytes`` is what the driver's tool prints, ``reserved_bytes`` what of it no
    process gets: on a device that shares its memory with the processor, also what the system keeps.
    ``architecture`` is ``sm_90``-like for CUDA, ``gfx942``-like for ROCm. ``aliases`` are names
    drivers report. ``unified``: whether its memory is the processor's too, so that what is free at
    a start is what other programs leave. ``driven_by``: programs that run models on it and are no
    engine here. ``known_as``: of a profile that is not shipped, the shipped device as which clouds
    and clusters know it. ``price_usd``: what one costs to buy, where that was published (a
    developer kit or a whole computer where it is not sold alone). ``host``: how slow the machine
    around it is (None: as the reference). ``disk``: storage of a node, where it was measured.
    ``sustained_share``: rate of matrix products that a device keeps up under a power limit of its
    own, of that of its architecture's other devices.
    ``several_a_node``: the profile of nodes that hold more of it than its own, where they differ.
    ``announced``: of a device that nobody has seen run; searches leave it out unless it is named.
    ``segment``: for whom its maker sells it; buyers see what is made for data centres.
    ``slice_of``: of a profile that is derived as a part of a shipped device.
    """

    name: Name
    title: Line
    vendor: Vendor
    runtime: Runtime
    architecture: Annotated[str, Field(pattern=r"^[a-z0-9_\-]{1,32}$")]
    segment: Annotated[Segment, Field(exclude_if=lambda value: value == "data-centre")] = (
        "data-centre"
    )
    driven_by: Annotated[Line | None, Field(exclude_if=_is_absent)] = None
    aliases: Annotated[tuple[Line, ...], Field(max_length=64)] = ()
    known_as: Name | None = None
    announced: Annotated[Announced | None, Field(exclude_if=_is_absent)] = None
    slice_of: Annotated[SliceOf | None, Field(exclude_if=_is_absent)] = None
    memory_bytes: Quantity
    reserved_bytes: Quantity | None = None
    unified: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    memory_bandwidth_bytes_per_s: Quantity
    peak_flops_per_s: dict[Dtype, Quantity]
    weight_dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    kv_dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    tdp_watts: Quantity
    idle_watts: Quantity | None = None
    sustained_share: Annotated[Quantity | None, Field(exclude_if=_is_absent)] = None
    several_a_node: Annotated[Name | None, Field(exclude_if=_is_absent)] = None
    price_usd: Annotated[Quantity | None, Field(exclude_if=_is_absent)] = None
    roofline: dict[Family, dict[Dtype | Literal["any"], Roofline]] = Field(default_factory=dict)
    node: NodeSpec
    host: Annotated[HostSpeed | None, Field(exclude_if=_is_absent)] = None
    transfers: Annotated[Transfers | None, Field(exclude_if=_is_absent)] = None
    disk: Annotated[Disk | None, Field(exclude_if=_is_absent)] = None

    @property
    def announcement(self) -> str | None:
        """Say what to know of answers about a device that is no more than announced; None else."""
        if self.announced is None:
            return None
        return (
            f"{self.title} was announced in {self.announced.date}: its figures are from the "
            "vendor's announcement, and no engine was seen on it."
        )

    @property
    def caveat(self) -> str | None:
        """Say what every answer about the device has to say; None for nothing."""
        if self.slice_of is None:
            return self.announcement
        return (
            f"{self.title} is a slice of {self.slice_of.device}: its rates are shares of the whole "
            "device's, and no run of an LLM on a slice is among the fitted ones, so that intervals "
            "are wider."
        )

    @property
    def usable_memory_bytes(self) -> float:
        return self.memory_bytes.value - (self.reserved_bytes.value if self.reserved_bytes else 0.0)

    @property
    def told_memory_bytes(self) -> float:
        """Memory that a driver tells a process there is, of which engines take shares.

        Of a card of its own that is what a process can allocate; of memory that is shared with the
        processor it is all of it, whoever holds some.
        """
        return self.memory_bytes.value if self.unified else self.usable_memory_bytes

    @property
    def digest(self) -> str:
        """Digest of all that an estimate may depend on: of ``segment`` none does."""
        plain = self.model_dump_json(exclude={"segment"})
        return hashlib.sha256(plain.encode()).hexdigest()

    @model_validator(mode="after")
    def _makes_sense(self) -> Device:
        if not {"bf16", "fp16", "fp32"} & set(self.peak_flops_per_s):
            raise ValueError("peak_flops_per_s needs bf16, fp16 or fp32")
        if not {"bf16", "fp16", "fp32"} & set(self.kv_dtypes):
            raise ValueError("kv_dtypes needs bf16, fp16 or fp32")
        if self.runtime not in RUNTIMES[self.vendor]:
            expected = " or ".join(RUNTIMES[self.vendor])
            raise ValueError(f"the runtime of {self.vendor} is {expected}, not {self.runtime}")
        if self.usable_memory_bytes <= 0:
            raise ValueError("reserved_bytes leaves nothing of memory_bytes")
        if self.idle_watts and self.idle_watts.value > self.tdp_watts.value:
            raise ValueError("idle_watts exceeds tdp_watts")
        return self


Way = Literal["library", "direct", "switch"]


class DirectLinks(DataRow):
    """Kernels that read or write the memory of other devices directly, without the library.

    Custom all-reduce, for example, or GPU-initiated RDMA.

    ``latency_s + latency_per_rank_s · (n - 1)`` to start, then the fabric's bandwidth times
    ``efficiency``. Messages above ``largest_bytes`` go by the library (None: none do, or the
    efficiency was fitted with those that do).
    """

    efficiency: Quantity
    latency_s: Quantity
    latency_per_rank_s: Quantity | None = None
    largest_bytes: Quantity | None = None


class Fabric(Sourced):
    """The link of devices in a node, or of nodes. Rates are per device and direction.

    ``efficiency``, ``latency_s`` and ``latency_per_rank_s`` are those of the collective library
    (NCCL, RCCL); a collective of p passes (2 for an all-reduce, else 1) takes ``latency_s + p · (n
    - 1) · latency_per_rank_s + moved bytes / (bandwidth · efficiency)``. ``direct``: kernels that
    do without the library; ``switch``: all-reduces that the switch sums (NVLink SHARP); None where
    there are none. ``domain``: devices that reach each other
    through it (8 on an HGX board, 72 in an NVL72 rack, 256 in a TPU v5e pod, 2
    under a bridge); None for a network.
    ``spans_nodes``: whether a domain reaches over several nodes (a rack), so that only its size
    bounds a fast group. ``beyond``: the fabric that joins domains inside one node, where a node
    holds several (bridged pairs over PCIe).
    """

    name: Name
    title: str
    kind: Literal["scale-up", "scale-out"]
    topology: Literal["switch", "mesh", "ring", "torus", "pcie", "network", "memory", "none"]
    domain: Annotated[int, Field(ge=1)] | None = None
    spans_nodes: bool = False
    beyond: Name | None = None
    bandwidth_bytes_per_s: Quantity
    efficiency: Annotated[
        Quantity, Field(description="achieved / datasheet rate of large collectives")
    ]
    latency_s: Quantity
    latency_per_rank_s: Quantity | None = None
    direct: DirectLinks | None = None
    switch: DirectLinks | None = None

    def links(self, way: Way) -> Fabric | DirectLinks:
        """Return the numbers of a way to communicate; the library's where it is not had."""
        return {"library": self, "direct": self.direct, "switch": self.switch}[way] or self

    @model_validator(mode="after")
    def _scope(self) -> Fabric:
        if (self.kind == "scale-up") != (self.domain is not None):
            raise ValueError("a scale-up fabric needs a domain, a network must not have one")
        if self.beyond is not None and self.domain is None:
            raise ValueError("only a fabric with a domain can have `beyond`")
        return self

    def joins(self, devices: int) -> bool:
        """Return whether this many devices of one machine reach each other.

        A domain bounds them, unless it spans nodes or another fabric joins domains. Slices have no
        links at all: a node holds them side by side, and a rule keeps servers to one each.
        """
        bounded = self.domain is not None and devices > self.domain and self.topology != "none"
        return not bounded or self.spans_nodes or self.beyond is not None


class DtypeSupport(DataRow):
    """The support of a weight format on architectures, by the silicon and by engines.

    ``native``: multiplied in the format (or its ``encoding``); ``weight-only``: stored so,
    multiplied in bf16; ``converted``: rewritten at load into what the silicon has; ``none``:
    refused.
    """

    dtype: Dtype
    encoding: str | None = None
    architectures: Annotated[tuple[str, ...], Field(min_length=1)]
    silicon: Literal["native", "none"]
    engines: dict[Name, Literal["native", "weight-only", "converted", "none"]] = Field(
        default_factory=dict
    )
    source: str
    status: Status
    note: str | None = None


class DtypeFile(Sourced):
    """``hw_profiles/dtypes.yaml``: weight formats by architecture."""

    support: tuple[DtypeSupport, ...]


class Priors(Sourced):
    """``hw_profiles/priors.yaml``: roofline numbers per runtime, for devices without their own."""

    roofline: dict[Runtime, dict[Family, Roofline]]
