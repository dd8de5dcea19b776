"""What a compression job holds in the memory of a device and of the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.models.mlp import MoeMlp
from recipe_core.models.spec import Layer, ModelSpec
from recipe_core.models.tensors import MATRIX_ROLES, Matrix, bytes_per_value

if TYPE_CHECKING:
    from recipe_core.compression.jobs.estimate import Job


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


FILE = DataFile(Path(__file__).with_name("numbers.yaml"), "options.compression")


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


FP32, HALF = 4.0, 2.0
# Activations of a layer that a backward pass keeps, in multiples of the hidden size, beside those
# of its feed-forward block.
HIDDEN_COPIES = 10
# The same of its feed-forward block, in multiples of its width.
MIDDLE_COPIES = 6


def device_bytes(job: Job, devices: int = 1) -> float:
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


def host_bytes(job: Job) -> float:
    """Peak of the host: the whole base, the texts' activations between layers, the process.

    Tools that write shard by shard still hold the base; one that quantises to GGUF holds the
    16-bit copy (llama.cpp, tools/quantize: as much memory as disk).
    """
    between = job.texts * job.model.hidden * HALF * 2
    base = 0.0 if job.resident else job.model.parameters * bytes_per_value(job.model.dtype)
    return job_numbers().host_base_bytes.value + base + between


def _layer_work_bytes(job: Job, block: Block, wide: float) -> float:
    """What the method keeps of one layer while it works on it."""
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
    """What tuning keeps of the texts.

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
