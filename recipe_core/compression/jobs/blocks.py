"""A model's layers as the matrices that a compression job rounds one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.models.mlp import MoeMlp
from recipe_core.models.spec import Layer, ModelSpec
from recipe_core.models.tensors import MATRIX_ROLES, Matrix


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
