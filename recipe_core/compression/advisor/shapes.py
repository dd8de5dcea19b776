"""What is left of a model that loses layers, width, experts or factors, as a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from recipe_core.compression.advisor.estimated import Shape
from recipe_core.models.catalog import catalog_ids, catalog_model, in_catalog
from recipe_core.models.spec import DenseMlp, Layer, ModelSpec, MoeMlp

WIDTH_STEP = 256
"""Widths are cut to multiples of it, so that every usual split still divides them."""
_SIZE = re.compile(r"\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?(?=$|[-_.])", re.IGNORECASE)


def smaller(model: ModelSpec, shape: Shape, removed: float) -> ModelSpec | None:
    """The model without a share ``removed`` of its weights; None where it has nothing of the kind.

    A share of layers, of all parameters (width, factors) or of routed experts; a sibling is the
    model of its family in the catalog whose size is nearest to what would be left.
    """
    if shape == "sibling":
        return sibling(model, removed)
    cut: dict[Shape, Callable[[ModelSpec, float], ModelSpec | None]] = {
        "layers": _fewer_layers,
        "width": _narrower,
        "factors": _narrower,
        "experts": _fewer_experts,
    }
    return cut[shape](model, removed)


def _fewer_layers(model: ModelSpec, removed: float) -> ModelSpec | None:
    """Without layers from the last third: published methods remove there, and keep the last."""
    number = round(len(model.layers) * removed)
    if not 0 < number < len(model.layers) - 1:
        return None
    end = len(model.layers) - 1
    layers = model.layers[: end - number] + model.layers[end:]
    return replace(model, layers=layers)


def _narrower(model: ModelSpec, removed: float) -> ModelSpec | None:
    """With feed-forward blocks so much narrower that the share of all parameters is gone."""
    parts = model.parameters_by_part
    of_blocks = sum(n for name, n in parts.items() if name in ("mlp", "moe.experts", "moe.shared"))
    if not of_blocks:
        return None
    kept = 1 - removed * model.language_parameters / of_blocks
    if kept <= 0:
        return None
    return replace(model, layers=tuple(_cut_block(layer, kept) for layer in model.layers))


def _cut_block(layer: Layer, kept: float) -> Layer:
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        return replace(layer, mlp=replace(mlp, intermediate=_width(mlp.intermediate, kept)))
    if isinstance(mlp, MoeMlp):
        width = _width(mlp.intermediate, kept)
        shared = _width(mlp.shared_intermediate, kept) if mlp.shared_intermediate else 0
        return replace(layer, mlp=replace(mlp, intermediate=width, shared_intermediate=shared))
    return layer


def _width(width: int, kept: float) -> int:
    step = WIDTH_STEP if width >= 4 * WIDTH_STEP else max(width // 8, 1)
    return max(round(width * kept / step), 1) * step


def _fewer_experts(model: ModelSpec, removed: float) -> ModelSpec | None:
    """With fewer routed experts; each token still goes to as many."""
    if not model.is_moe:
        return None
    return replace(model, layers=tuple(_cut_experts(layer, removed) for layer in model.layers))


def _cut_experts(layer: Layer, removed: float) -> Layer:
    mlp = layer.mlp
    if not isinstance(mlp, MoeMlp):
        return layer
    experts = max(round(mlp.experts * (1 - removed) / 8) * 8, mlp.top_k)
    return replace(layer, mlp=replace(mlp, experts=experts))


def sibling(model: ModelSpec, removed: float) -> ModelSpec | None:
    """The smaller unquantised model of the family whose size is nearest; None without any.

    A family: ids of the catalog that differ in the size they name, or else in minor versions too.
    """
    if not in_catalog(model.name):
        return None
    parameters = model.language_parameters * (1 - removed)
    for family in (_family, _generation):
        near = [
            catalog_model(other)
            for other in catalog_ids()
            if family(other) == family(model.name) and other != model.name
        ]
        near = [
            other
            for other in near
            if other.quantization is None
            and other.task == model.task
            and other.language_parameters < 0.9 * model.language_parameters
        ]
        if near:
            return min(near, key=lambda other: abs(other.language_parameters - parameters))
    return None


def _family(name: str) -> str:
    """An id without the size that it names."""
    owner, _, rest = name.casefold().partition("/")
    return f"{owner}/{_SIZE.sub('*', rest)}"


def _generation(name: str) -> str:
    """The family without minor versions: Llama 3.1 and 3.2 are one."""
    return re.sub(r"(\d)\.\d+", r"\1", _family(name))
