"""Time, memory and disk of a job that makes a smaller checkpoint, by its method.

Layers are worked on one after the other: a layer comes to the device, calibration texts pass
through it, its matrices are rounded, it goes back. Sources of the terms: GPTQ (arXiv 2210.17323)
for Hessians, factorisation and columns; AWQ (2306.00978) for the grid; AutoRound (2309.05516) for
iterations; LLM Compressor's guide to memory for what a device holds. Checked against published
times in docs/method/compression.md, which has the ratios. Left out: downloads, the tool's own
compilation, and several devices at work on one model at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.estimates.serving.feature_results import CompressionEstimate, Duration
from recipe_core.hardware.host import link_rates
from recipe_core.hardware.profile import Device
from recipe_core.models.mlp import MoeMlp
from recipe_core.models.spec import Layer, ModelSpec
from recipe_core.models.tensors import MATRIX_ROLES, Matrix, bytes_per_value


@dataclass(frozen=True, slots=True)
class Block:
    """One layer, of which a model has ``count``: a row for each kind of matrix.

    inputs, outputs: of one matrix; times: how many the layer has; active: share of the tokens that
    pass through each of them.
    """

    inputs: Float
    outputs: Float
    times: Float
    active: Float
    count: int

    @property
    def weights(self) -> float:
        return float(np.sum(self.inputs * self.outputs * self.times))

    @property
    def modules(self) -> float:
        return float(np.sum(self.times))

    def touched(self, *, everywhere: bool) -> float:
        """Weights that a token meets; ``everywhere``: all experts see every token."""
        share = 1.0 if everywhere else self.active
        return float(np.sum(self.inputs * self.outputs * self.times * share))


def layer_blocks(model: ModelSpec) -> tuple[Block, ...]:
    """The distinct layers of a model.

    Keys and values are two matrices, gate and up projections too: so tools round them, and each has
    a Hessian of its own (LLM Compressor, ``modifiers/gptq``).
    """
    return tuple(_layer_block(layer, model.hidden, count) for layer, count in model.kinds)


def _layer_block(layer: Layer, hidden: int, count: int) -> Block:
    rows: list[tuple[float, float, float, float]] = []
    for item in layer.tensors(hidden):
        if item.role not in MATRIX_ROLES or item.role == "experts":
            continue
        for matrix in item.matrices:
            parts = _module_count(item.name, matrix, layer)
            rows.append((matrix.inputs, matrix.outputs / parts, parts, 1.0))
    if isinstance(mlp := layer.mlp, MoeMlp):
        inside, share = mlp.expert_hidden(hidden), mlp.top_k / mlp.experts
        ups = 2 if mlp.gated else 1
        rows.append((inside, mlp.intermediate, ups * mlp.experts, share))
        rows.append((mlp.intermediate, inside, mlp.experts, share))
    inputs, outputs, times, active = np.array(rows or [(0.0,) * 4], dtype=float).T
    return Block(inputs, outputs, times, active, count)


def _module_count(name: str, matrix: Matrix, layer: Layer) -> int:
    """Modules that a row of the tensor table stands for."""
    if name == "attention.kv":
        return 2
    gated = getattr(layer.mlp, "gated", False)
    return 2 if gated and name.startswith("mlp") and not matrix.cuts_inputs else 1


FILE = DataFile(Path(__file__).with_name("jobs.yaml"), "options.compression")


class Numbers(Sourced):
    """Each is explained by its note."""

    matrix_share: Quantity
    single_share: Quantity
    cholesky_share: Quantity
    column_s: Quantity
    call_s: Quantity
    hook_s: Quantity
    start_s: Quantity
    load_bytes_per_s: Quantity
    link_share: Quantity
    grid: Quantity
    iterations: Quantity
    tuned_batch: Quantity
    tuned_bytes: Quantity
    value_passes: Quantity
    context_bytes: Quantity
    host_base_bytes: Quantity
    factor: Quantity


@cache
def job_numbers() -> Numbers:
    return FILE.read_as(Numbers)


HALF = 2.0
# Activations of a layer that a backward pass keeps, in multiples of the hidden size, beside those
# of its feed-forward block.
HIDDEN_COPIES = 10
# The same of its feed-forward block, in multiples of its width.
MIDDLE_COPIES = 6


def job_device_bytes(job: Job, devices: int = 1) -> float:
    """Peak on one device: the layer that is worked on, what its method keeps of it, one batch.

    Where the whole model lies on the devices (``resident``), its share of it besides. LLM
    Compressor's guide counts the layer alone for RTN and twice that for GPTQ; here Hessians are
    counted in the 32 bit in which they are kept, and the workspace of one matrix with them.
    """
    wide = bytes_per_value(job.model.dtype)
    largest = max(
        (_layer_work_bytes(job, block, wide) for block in layer_blocks(job.model)), default=0.0
    )
    texts = job.tokens * job.model.hidden * HALF * 8 if job.samples else 0.0
    resident_bytes = job.model.parameters * wide / devices if job.resident else 0.0
    if job.method == "AutoRound":
        texts = _tuned_texts(job)
    return job_numbers().context_bytes.value + resident_bytes + largest + texts


def job_host_bytes(job: Job) -> float:
    """Peak of the host: the whole base, the texts' activations between layers, the process.

    Tools that write shard by shard still hold the base; one that quantises to GGUF holds the
    16-bit copy (llama.cpp, tools/quantize: as much memory as disk).
    """
    between = job.texts * job.model.hidden * HALF * 2
    base = 0.0 if job.resident else job.model.parameters * bytes_per_value(job.model.dtype)
    return job_numbers().host_base_bytes.value + base + between


def _layer_work_bytes(job: Job, block: Block, wide: float) -> float:
    """Return what the method keeps of one layer while it works on it."""
    weights = block.weights * wide
    if job.method == "AutoRound":
        return block.weights * job_numbers().tuned_bytes.value
    if job.method in ("GPTQ", "SparseGPT"):
        hessians = float(np.sum(FP32 * block.inputs**2 * block.times))
        work = float(np.max(2 * FP32 * block.inputs * (block.outputs + block.inputs)))
        return weights + hessians + work
    if job.method == "AWQ":
        return 2 * weights + job.tokens * float(np.max(block.outputs)) * FP32
    largest = float(np.max(block.inputs * block.outputs))
    return weights + 2 * FP32 * largest


def _tuned_texts(job: Job) -> float:
    """Return what tuning keeps of the texts.

    Inputs of a block with and without rounding, the output that is matched, and a batch's
    activations for the backward pass.
    """
    middle = max((_middle(block) for block in layer_blocks(job.model)), default=0.0)
    text_bytes = job.texts * job.model.hidden * HALF * 3
    batch = job_numbers().tuned_batch.value * job.tokens
    return text_bytes + batch * HALF * (HIDDEN_COPIES * job.model.hidden + MIDDLE_COPIES * middle)


def _middle(block: Block) -> float:
    """Width of the feed-forward block that a token meets: of all experts that it goes to."""
    tokens = block.active * block.times
    return float(np.max(np.where(block.active < 1, block.inputs * tokens, block.inputs)))


FP32 = 4.0
# Passes of the texts through a layer: one to observe, one with what it became.
CALIBRATED_TWICE = 2


@dataclass(frozen=True, slots=True)
class Rates:
    """The work of a device in a second.

    FLOPs of 16- and 32-bit products, bytes of its memory, and bytes of its link to the host.
    """

    half: float
    single: float
    memory: float
    link: float

    @classmethod
    def of(cls, device: Device) -> Rates:
        """The peaks of a profile; a device without 16-bit or 32-bit rates has the other's."""
        peaks = {name: peak.value for name, peak in device.peak_flops_per_s.items()}
        single = peaks.get("fp32") or max(peaks.values()) / 16
        half = peaks.get("bf16") or peaks.get("fp16") or single
        bandwidth = device.memory_bandwidth_bytes_per_s.value
        link = bandwidth if device.runtime == "cpu" else min(link_rates(device))
        return cls(half, single, bandwidth, link * job_numbers().link_share.value)


@dataclass(frozen=True, slots=True)
class Job:
    """The work on a model: method, texts, and bits a weight of the result.

    everywhere: whether all experts see every token, as LLM Compressor calibrates them. observed:
    whether ranges of activations are taken. resident: whether the whole model lies on the devices,
    as with tools that do not bring layer after layer. wide_copy: whether a 16-bit copy is written
    on the way.
    """

    model: ModelSpec
    tool: str
    technique: str
    method: str
    samples: int
    tokens: int
    weight_bits: float
    everywhere: bool = False
    observed: bool = False
    resident: bool = False
    wide_copy: bool = False

    @property
    def texts(self) -> float:
        return float(self.samples * self.tokens)

    @property
    def base_bytes(self) -> float:
        """Bytes of the base in the format in which it is stored."""
        return float(self.model.checkpoint_bytes or self.model.counted_bytes)

    @property
    def output_bytes(self) -> float:
        """Bytes of the result: matrices of layers at the technique's bits, the rest as it was."""
        matrices = sum(block.weights * block.count for block in layer_blocks(self.model))
        wide = bytes_per_value(self.model.dtype)
        rest = max(self.model.parameters - matrices, 0.0)
        return matrices * min(self.weight_bits / 8, wide) + rest * wide


def estimate_job(
    job: Job, device: Device, *, devices: int = 1, usd_per_device_hour: float | None = None
) -> CompressionEstimate:
    """Return what a job takes on a device, or on several that hold the model together.

    Args:
        job: what is done.
        device: one device; for ``cpu`` all memory is the host's.
        devices: of a resident model; layers still run one after the other.
        usd_per_device_hour: price of each of them; None where it is not known.
    """
    rates, factor = Rates.of(device), job_numbers().factor.value
    phases = tuple((name, seconds) for name, seconds in _phases(job, rates) if seconds > 0)
    seconds = sum(part for _, part in phases)
    device_bytes, host_bytes = job_device_bytes(job, devices), job_host_bytes(job)
    if device.runtime == "cpu":
        device_bytes, host_bytes = 0.0, host_bytes + device_bytes
    used = devices if job.resident else 1
    usd = None if usd_per_device_hour is None else seconds / 3600 * usd_per_device_hour * used
    output = job.output_bytes
    return CompressionEstimate(
        tool=job.tool,
        method=job.method,
        technique=job.technique,
        seconds=Duration(value=seconds, low=seconds / factor, high=seconds * factor),
        device_bytes=round(device_bytes),
        host_bytes=round(host_bytes),
        disk_bytes=round(output + (job.model.parameters * 2.0 if job.wide_copy else 0.0)),
        output_bytes=round(output),
        phases_s=dict(phases),
        usd=usd,
    )


def _phases(job: Job, rates: Rates) -> Iterator[tuple[str, float]]:
    """Seconds by what they are spent on."""
    constants, layers = job_numbers(), layer_blocks(job.model)
    wide = job.model.parameters * 2.0 if job.wide_copy else 0.0
    yield "start", constants.start_s.value
    yield (
        "read and write",
        (job.base_bytes + job.output_bytes + 2 * wide) / (constants.load_bytes_per_s.value),
    )
    per_layer = _of_method(job)
    names: dict[str, float] = {"move layers": job.base_bytes * 2 / rates.link}
    for block in layers:
        for name, seconds in per_layer(job, block, rates):
            names[name] = names.get(name, 0.0) + seconds * block.count
    yield from names.items()


def rounding(_job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """Weights read in 16 bit and written with scales: about ten passes over them in 32 bit."""
    yield "rounding", 10 * FP32 * block.weights / rates.memory


def forward(job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """Texts through a layer: ``2 · weights · tokens`` FLOPs a pass, and a hook a module and text.

    Where ranges of activations are taken, each module of each text is observed besides.
    """
    if not job.samples:
        return
    constants = job_numbers()
    flops = CALIBRATED_TWICE * 2 * block.touched(everywhere=job.everywhere) * job.texts
    calls = CALIBRATED_TWICE * job.samples * block.modules * constants.hook_s.value
    yield "calibration", flops / (rates.half * constants.matrix_share.value) + calls
    if job.observed:
        yield "ranges of activations", job.samples * block.modules * constants.call_s.value


def round_to_nearest(job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """RTN, and SmoothQuant, whose scales are a maximum that calibration takes along the way."""
    yield from forward(job, block, rates)
    yield from rounding(job, block, rates)


def gptq(job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """GPTQ, and SparseGPT: Hessians, their inverse, and columns one after the other.

    For a matrix of ``n`` inputs and ``m`` outputs: ``2 n² · tokens`` FLOPs in 32 bit for
    ``H = 2 X Xᵀ``; ``4/3 · n³`` to factorise, invert and factorise it again; ``2 m n²`` to carry
    errors on; and ``n`` steps of some small kernels.
    """
    constants = job_numbers()
    yield from forward(job, block, rates)
    share = 1.0 if job.everywhere else block.active
    square = block.inputs**2 * block.times
    single = rates.single * constants.single_share.value
    yield "Hessians", float((2 * square * job.texts * share).sum()) / single
    inverse = 4 / 3 * (block.inputs**3 * block.times).sum()
    yield "inverses", float(inverse) / (rates.single * constants.cholesky_share.value)
    updates = float((2 * block.outputs * square).sum()) / single
    columns = float((block.inputs * block.times).sum()) * constants.column_s.value
    yield "columns", updates + columns


def awq(job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """AWQ: every scale of the grid is tried on the layer's modules with all texts."""
    constants = job_numbers()
    yield from forward(job, block, rates)
    flops = constants.grid.value * 2 * block.touched(everywhere=job.everywhere) * job.texts
    tries = constants.grid.value * 10 * FP32 * block.weights / rates.memory
    yield "grid of scales", flops / (rates.half * constants.matrix_share.value) + tries
    yield from rounding(job, block, rates)


def autoround(job: Job, block: Block, rates: Rates) -> Iterator[tuple[str, float]]:
    """AutoRound: steps of one forward and one backward pass, ``6 · weights · tokens`` FLOPs each.

    Besides, passes over each weight with its rounding, gradient and scales.
    """
    constants = job_numbers()
    yield from forward(job, block, rates)
    tokens = constants.tuned_batch.value * job.tokens
    flops = 6 * block.touched(everywhere=job.everywhere) * tokens
    step_s = flops / (rates.half * constants.matrix_share.value)
    step_s += constants.value_passes.value * block.weights / rates.memory
    yield "tuning", constants.iterations.value * step_s


Layers = Callable[[Job, Block, Rates], Iterator[tuple[str, float]]]
_METHODS: dict[str, Layers] = {
    "GPTQ": gptq,
    "SparseGPT": gptq,
    "AWQ": awq,
    "AutoRound": autoround,
}


def _of_method(job: Job) -> Layers:
    return _METHODS.get(job.method, round_to_nearest)
