"""A frozen base: bytes of it that are stored, gathered and made for a product, and that time.

Adapters are trained beside weights that stay as they are. In four bits these are turned into 16
before every product that reads them: in the forward pass, in the backward pass for the gradients of
inputs, and in a forward pass that is repeated. A pass over a layer takes the larger of what its
bytes and its operations take (`quantized_bases`), with a rounded corner as every operator. What of
a base is a parameter of its framework is divided and gathered as it is stored; one matrix at a time
is in 16 bits.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.quantized_bases import quantized_bases
from recipe_core.estimates.columns.training import RECOMPUTE, TrainingCases, TrainingSetting
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.training.activations import BYTES, recomputed_share
from recipe_core.models.spec import Layer, Tensor
from recipe_core.models.tensors import MATRIX_ROLES

# Half of a layer, by role, of the matrices that can get adapters.
ADAPTED = {"attention": "attention", "mixer": "attention", "linear": "mlp", "shared": "mlp"}


def split_ranks(cases: TrainingCases, item: Tensor) -> Float:
    """Ranks over which tensor or expert parallelism splits a tensor."""
    if item.shard == "experts":
        return np.where(cases.ep > 1, cases.ep, cases.tp).astype(float)
    return np.ones(len(cases)) if item.shard == "replicated" else cases.tp.astype(float)


def adapter_sizes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Parameters of low-rank adapters on one rank: rank · (inputs + outputs) per matrix.

    Fused matrices have an adapter for each part. Source: arXiv:2106.09685.
    """
    out = np.zeros(len(cases))
    for item in layer.tensors(setting.model.hidden):
        if item.role in ADAPTED and setting.adapts(ADAPTED[item.role]):
            parts = _fused_parts(layer, item)
            sizes = (m.outputs + m.inputs * (1 if m.cuts_inputs else parts) for m in item.matrices)
            out = out + setting.lora_rank * sum(sizes) / split_ranks(cases, item)
    return out


def _fused_parts(layer: Layer, item: Tensor) -> int:
    """Matrices that share their inputs in one tensor: keys and values; gate and up."""
    if item.name == "attention.kv":
        return 2
    if item.role in ("linear", "shared") and layer.mlp:
        return layer.mlp.matrices - 1
    return 1


def weight_bytes(setting: TrainingSetting) -> float:
    """Bytes of a base weight that are divided over ranks, as they are stored."""
    return BYTES if setting.base is None else setting.base.parameter_bytes.value


def buffer_bytes(setting: TrainingSetting) -> float:
    """Bytes of a base weight that every device has whole: scales, or weights in buffers."""
    return 0.0 if setting.base is None else setting.base.buffer_bytes.value


def gathered_weight_bytes(setting: TrainingSetting) -> float:
    """Bytes of a layer's weight that a rank gathers before it is used."""
    base = setting.base
    return setting.states.gathered if base is None else base.parameter_bytes.value


def frozen_base_bytes(setting: TrainingSetting) -> float:
    """Bytes of a frozen base in one piece, in 16 or in 4 bits; its vocabulary always in 16."""
    model = setting.model
    layers = weight_bytes(setting) + buffer_bytes(setting)
    table = model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)
    return layers * (model.language_parameters - table) + BYTES * table


def matrix_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes made while the largest 4-bit matrix of a rank is turned into 16 bits, one per case."""
    if setting.base is None:
        return np.zeros(len(cases))
    sizes = [
        matrix.outputs * matrix.inputs / _fused_parts(layer, item) / split_ranks(cases, item)
        for layer, _ in setting.model.kinds
        for item in layer.tensors(setting.model.hidden)
        if item.role in MATRIX_ROLES
        for matrix in item.matrices
    ]
    largest = np.max(sizes, axis=0) if sizes else np.zeros(len(cases))
    return np.asarray(setting.base.transient_bytes.value * largest)


def dequantize_s(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Seconds in which a pass turns a layer's 4-bit weights into 16 bits, one per case."""
    base, device = setting.base, setting.cluster.device
    if base is None:
        return np.zeros(len(cases))
    weights = np.zeros(len(cases))
    for item in layer.tensors(setting.model.hidden):
        if item.role in MATRIX_ROLES:
            weights = weights + item.numel / split_ranks(cases, item)
    wider = quantized_bases().wider(device.architecture)
    return operator_s(
        device,
        "elementwise",
        "fp32",
        base.operations.value * wider * weights,
        base.moved_bytes.value * weights,
        base.starts * _matrix_count(setting, layer),
        label="Weights from 4 to 16 bits",
    )


def _matrix_count(setting: TrainingSetting, layer: Layer) -> float:
    return float(
        sum(
            1 if matrix.cuts_inputs else _fused_parts(layer, item)
            for item in layer.tensors(setting.model.hidden)
            if item.role in MATRIX_ROLES
            for matrix in item.matrices
        )
    )


def launched_s(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Host seconds in which a mean layer's kernels that turn weights are started, one per case.

    In both passes, and where the forward pass is repeated.
    """
    if setting.base is None:
        return np.zeros(len(cases))
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    matrices = sum(_matrix_count(setting, kind) * n for kind, n in kinds) / layers
    again = cases.recompute == RECOMPUTE.index("full")
    passes = 2.0 + recomputed_share(setting, cases) * again
    return np.asarray(quantized_bases().start_s.value * setting.base.starts * matrices * passes)
