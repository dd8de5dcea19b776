"""What a technique changes of what is planned: the model's weights, the cache, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from recipe_core.accuracy.support import Verdict
from recipe_core.accuracy.technique import Technique
from recipe_core.compression.advisor.estimated import Estimated, Shape, estimated
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.rules.kernels import reply_on_format
from recipe_core.hardware.cluster import dtypes, no_kernels
from recipe_core.hardware.profile import Device
from recipe_core.models.catalog import catalog_ids, catalog_model, in_catalog
from recipe_core.models.dtypes import BYTES_PER_VALUE, compute_dtype
from recipe_core.models.quantization import Quantization
from recipe_core.models.spec import MATRIX_ROLES, DenseMlp, Layer, ModelSpec, MoeMlp, Role

# Widths are cut to multiples of it, so that every usual split still divides them.
WIDTH_STEP = 256
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


# Format that stands for every one that is stored small and multiplied in 16 bit.
WEIGHT_ONLY = "int4"
WHOLE: frozenset[Role] = MATRIX_ROLES | {"embedding", "head"}
SCALE_BITS = 16.0
# Why a model has no smaller shape of a kind.
LACKS: dict[Shape, str] = {
    "experts": "has no routed experts",
    "sibling": "has no smaller sibling in the catalog",
}

# format: a plan has it, judged as in any plan. estimated: the same physics on changed bytes.
Way = Literal["format", "estimated"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is planned in place of the base.

    ``model``: with its weights changed. ``weight_dtype`` and ``kv_dtype``: formats that are asked
    for ("auto": the model's). ``assumed``: whether rules on formats are passed over, since no plan
    has the format. ``reshaped``: whether the model has fewer or smaller tensors. ``notes``: what
    the estimate leaves out.
    """

    model: ModelSpec
    weight_dtype: str = "auto"
    kv_dtype: str = "auto"
    assumed: bool = False
    reshaped: bool = False
    notes: tuple[str, ...] = ()

    @property
    def way(self) -> Way:
        return "estimated" if self.assumed or self.reshaped else "format"

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """What tells plans apart: techniques that store and multiply alike share one."""
        return self.model.digest, self.weight_dtype, self.kv_dtype, self.assumed

    def with_cache_of(self, other: Change) -> Change:
        return replace(
            self,
            kv_dtype=other.kv_dtype,
            assumed=self.assumed or other.assumed,
            notes=(*self.notes, *other.notes),
        )


@dataclass(frozen=True, slots=True)
class NoChange:
    """Why a technique has no estimate: a sentence. ``already``: the base is it."""

    why: str
    already: bool = False


def change_of(
    name: str, technique: Technique, base: Setting, verdict: Verdict
) -> Change | NoChange:
    """What a technique changes of the base, whose weights lie as ``base`` says.

    Args:
        name: of the technique.
        technique: its bits and kind.
        base: model, device, engine and formats of the base.
        verdict: how the engine runs it on the device.
    """
    how = estimated(name)
    if how.unknown:
        return NoChange(how.unknown)
    if how.shape:
        return _shaped(technique, how, base)
    weights = _weights(technique, how, base, verdict)
    if technique.kv_bits >= 16 or isinstance(weights, NoChange):
        return weights
    return _cached(weights, how, base)


def _shaped(technique: Technique, how: Estimated, base: Setting) -> Change | NoChange:
    assert how.shape is not None  # noqa: S101 - the caller looked
    model = smaller(base.model, how.shape, technique.removed)
    if model is None:
        return NoChange(f"the model {LACKS.get(how.shape, 'is too small for it')}")
    return Change(model, reshaped=True, notes=_notes(how))


def _notes(how: Estimated) -> tuple[str, ...]:
    return (how.doubt,) if how.doubt else ()


# Weights


def _weights(
    technique: Technique, how: Estimated, base: Setting, verdict: Verdict
) -> Change | NoChange:
    if technique.weight_bits >= 16 and how.stored_bits is None:
        return Change(base.model)
    if base.weight_dtype not in WIDE:
        return _stored_already(technique, base)
    if technique.weight_dtype is not None and _is_format(technique, how, base, verdict):
        return Change(base.model, technique.weight_dtype, notes=_notes(how))
    return _stored_small(technique, how, base, verdict)


def _stored_already(technique: Technique, base: Setting) -> NoChange:
    """Of a base that is published in a small format only."""
    stored = base.weight_dtype
    if technique.weight_dtype is not None and stored.split("-")[0] == technique.weight_dtype:
        return NoChange(f"the checkpoint stores {stored} already", already=True)
    return NoChange(
        f"the checkpoint is published in {stored} only: made smaller again it loses twice, and no "
        "figure says how much"
    )


def _is_format(technique: Technique, how: Estimated, base: Setting, verdict: Verdict) -> bool:
    device, dtype = base.cluster.device, technique.weight_dtype
    if dtype is None or dtype not in device.weight_dtypes or how.stored_bits is not None:
        return False
    engine = base.engine.wraps or base.engine.name
    told = reply_on_format(base.engine, device.architecture, dtype, "")
    if told is None or told.verdict == "unknown":
        if no_kernels(engine, device.architecture, dtype, "") is not None:
            return False
    elif not told.runs:
        return False
    planned_wide = compute_dtype(dtype, device.peak_flops_per_s) in WIDE
    return planned_wide != (technique.act_bits < 16 and verdict == "native")


def runs_weights(engine: Engine, device: Device, dtype: str) -> bool:
    """Whether tables or files of engines or devices say that the engine runs ``dtype`` weights."""
    told = reply_on_format(engine, device.architecture, dtype, "")
    if dtype in engine.online_weight_dtypes or (told is not None and told.runs):
        return True
    name = engine.wraps or engine.name
    return any(
        row.engines.get(name, "none") != "none"
        for row in dtypes().support
        if row.dtype == dtype and device.architecture in row.architectures
    )


def _stored_small(
    technique: Technique, how: Estimated, base: Setting, verdict: Verdict
) -> Change | NoChange:
    """Weights of so many bits, multiplied in the technique's format or in 16 bit."""
    device = base.cluster.device
    dtype = WEIGHT_ONLY
    native = verdict == "native" and (technique.act_bits < 16 or how.rate > 1)
    if native:
        product = _format_at(how, device)
        if product is None:
            return NoChange(f"no rate of such products is known of {device.title}")
        dtype = product
    quantization = Quantization(
        dtype, WHOLE if how.whole else MATRIX_ROLES, value_bytes=stored_bits(technique, how) / 8
    )
    model = replace(base.model, quantization=quantization)
    return Change(model, assumed=True, notes=_notes(how))


def _format_at(how: Estimated, device: Device) -> str | None:
    """A format of the device whose products run at the technique's rate; None where none does.

    Sparse products run at a multiple of their dense rate, which another format has.
    """
    peaks = {str(name): peak.value for name, peak in device.peak_flops_per_s.items()}
    if how.computes not in peaks:
        return None
    if how.rate == 1:
        return how.computes
    rate = how.rate * peaks[how.computes]
    return next((name for name, peak in peaks.items() if abs(peak / rate - 1) < 0.02), None)


def stored_bits(technique: Technique, how: Estimated | None = None) -> float:
    """Bits a weight with its scales.

    Nominal whole bits don't count scales: a 16-bit one and a zero point for each group.
    """
    if how is not None and how.stored_bits is not None:
        return how.stored_bits
    bits = technique.weight_bits
    if technique.group and technique.group.isdecimal() and bits == int(bits):
        return bits + (SCALE_BITS + bits) / int(technique.group)
    return bits


# Cache


def _cached(weights: Change, how: Estimated, base: Setting) -> Change | NoChange:
    if not base.caches:
        return NoChange("an encoder keeps no KV cache")
    dtype = how.kv
    if dtype is None or dtype not in BYTES_PER_VALUE:
        return NoChange("no plan counts the bytes of such a cache")
    if dtype == base.kv_dtype:
        return NoChange(f"the cache is {dtype} already", already=True)
    device, engine = base.cluster.device, base.engine
    planned = dtype in device.kv_dtypes and dtype in engine.free_kv_dtypes
    return replace(weights, kv_dtype=dtype, assumed=weights.assumed or not planned)
