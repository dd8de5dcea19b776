"""Captured CUDA graphs: memory set aside for them, and what capturing needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.memory import GraphMemory, captured_sizes
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache import Counted, block_bytes
from recipe_core.models.spec import LinearAttention


def _graph_memory(setting: Setting) -> GraphMemory | None:
    """How the engine treats captured graphs on this device; None where no share has them."""
    graphs = setting.engine.memory.graphs
    return graphs if graphs and setting.cluster.device.runtime in graphs.runtimes else None


def graph_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes that the engine sets aside for captured graphs, by how many batches it captures."""
    graphs = _graph_memory(setting)
    if graphs is None:
        return np.zeros(len(cases))
    largest = graphs.batch_on(setting.cluster.device.architecture)
    sizes = captured_sizes(np.minimum(2 * cases.max_num_seqs, largest))
    return graphs.bytes * sizes / captured_sizes(np.full(len(cases), float(largest)))


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's device in bytes: what is in it, its size, and what is left for the cache."""

    weights: Float
    runtime: Float
    capacity: Float
    pool: Float


def capture_shortfall(
    setting: Setting, cases: Cases, layers: Counted, device_memory: Held
) -> Float:
    """Bytes missing for captured graphs, which need a block of cache for each request.

    First on the whole device, before there is a cache, while the engine measures them: ``W + N +
    min(S, G) · block`` for S sequences and graphs for batches of up to G. Then in the pool, where
    layers have states: ``S · block``. Blocks that hold the states of a hybrid are large. Source:
    vLLM 0.32.0, ``_init_minimal_kv_cache_for_profiling``, and ``config/compilation.py``
    ("exceeds available Mamba cache blocks", as recipes#551 met with 1,024 sequences on an H100).
    Qwen3.8-27B in NVFP4 on an RTX 5090 dies of the first in one layer's 256 blocks of 1,568 tokens,
    784 MiB, whatever its share.
    """
    graphs = _graph_memory(setting)
    if graphs is None:
        return np.full_like(device_memory.weights, -np.inf)
    block = block_bytes(setting, layers, cases)
    batch = np.minimum(cases.max_num_seqs, graphs.batch_on(setting.cluster.device.architecture))
    resident = device_memory.weights + device_memory.runtime - graph_bytes(setting, cases)
    missing = resident + batch * block - device_memory.capacity
    if any(isinstance(layer.attention, LinearAttention) for layer, _ in layers):
        missing = np.maximum(missing, cases.max_num_seqs * block - device_memory.pool)
    return missing
