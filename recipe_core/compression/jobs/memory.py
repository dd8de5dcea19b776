"""What a compression job holds in the memory of a device and of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recipe_core.compression.jobs.blocks import Block, layer_blocks
from recipe_core.compression.jobs.numbers import job_numbers
from recipe_core.models.dtypes import bytes_per_value

if TYPE_CHECKING:
    from recipe_core.compression.jobs.estimate import Job

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
