"""The change that a technique makes to a plan: the model's weights, the cache, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.accuracy.runners import Verdict
from recipe_core.accuracy.technique import Technique
from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.rules.kernels import reply_on_format
from recipe_core.hardware.cluster import dtypes, no_kernels
from recipe_core.hardware.profile import Device
from recipe_core.models.catalog import catalog_ids, catalog_model, in_catalog
from recipe_core.models.spec import MATRIX_ROLES, DenseMlp, Layer, ModelSpec, MoeMlp, Role
from recipe_core.models.tensors import BYTES_PER_VALUE, Quantization, compute_dtype

FILE = DataFile(PACKAGE / "compression" / "advisor" / "estimated.yaml", "technique")
# Entry of all types of GGUF files, whose names begin with it.
FAMILY_OF_FILES = "gguf"

# What is left of a model that loses weights.
Shape = Literal["layers", "width", "experts", "factors", "sibling"]


class Estimated(DataRow):
    """The extra facts that an estimate of a technique needs beside its bits.

    computes: format of its products where they are formed natively. kv: format of the cache.
    stored_bits: bits a weight of the base, zeros left out, indices included. rate: products over
    those of the dense base. shape: what is left of the model. whole: whether embedding and head are
    stored in it too. doubt: what is left out. unknown: why there is no estimate.
    """

    computes: Text | None = None
    kv: Text | None = None
    stored_bits: Annotated[float, Field(gt=0, le=16)] | None = None
    rate: Annotated[float, Field(ge=1, le=4)] = 1
    shape: Shape | None = None
    whole: bool = False
    doubt: Text | None = None
    unknown: Text | None = None
    source: Text | None = None


class _File(Sourced):
    techniques: dict[str, Estimated]


_TABLE = DataTable[Estimated](FILE, _File, "techniques", "technique")


def estimated_entry(technique: str) -> Estimated:
    """Return how a technique is estimated; as plain stored bits where nothing more is needed."""
    if technique.startswith(f"{FAMILY_OF_FILES}_"):
        return _TABLE.rows[FAMILY_OF_FILES]
    return _TABLE.rows.get(technique, Estimated())


# Widths are cut to multiples of it, so that every usual split still divides them.
WIDTH_STEP = 256
_SIZE = re.compile(r"\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?(?=$|[-_.])", re.IGNORECASE)


def shrink_model(model: ModelSpec, shape: Shape, removed: float) -> ModelSpec | None:
    """The model without a share ``removed`` of its weights; None where it has nothing of the kind.

    A share of layers, of all parameters (width, factors) or of routed experts; a sibling is the
    model of its family in the catalog whose size is nearest to what would be left.
    """
    if shape == "sibling":
        return find_sibling(model, removed)
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
    share = 1 - removed * model.language_parameters / of_blocks
    if share <= 0:
        return None
    return replace(model, layers=tuple(_cut_block(layer, share) for layer in model.layers))


def _cut_block(layer: Layer, share: float) -> Layer:
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        return replace(layer, mlp=replace(mlp, intermediate=_width(mlp.intermediate, share)))
    if isinstance(mlp, MoeMlp):
        width = _width(mlp.intermediate, share)
        shared = _width(mlp.shared_intermediate, share) if mlp.shared_intermediate else 0
        return replace(layer, mlp=replace(mlp, intermediate=width, shared_intermediate=shared))
    return layer


def _width(width: int, share: float) -> int:
    step = WIDTH_STEP if width >= 4 * WIDTH_STEP else max(width // 8, 1)
    return max(round(width * share / step), 1) * step


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


def find_sibling(model: ModelSpec, removed: float) -> ModelSpec | None:
    """The smaller unquantised model of the family whose size is nearest; None without any.

    A family: ids of the catalog that differ in the size they name, or else in minor versions too.
    """
    if not in_catalog(model.name):
        return None
    parameters = model.language_parameters * (1 - removed)
    for family in (_model_family_id, _generation_id):
        relatives = [
            catalog_model(relative)
            for relative in catalog_ids()
            if family(relative) == family(model.name) and relative != model.name
        ]
        relatives = [
            relative
            for relative in relatives
            if relative.quantization is None
            and relative.task == model.task
            and relative.language_parameters < 0.9 * model.language_parameters
        ]
        if relatives:
            return min(
                relatives, key=lambda relative: abs(relative.language_parameters - parameters)
            )
    return None


def _model_family_id(name: str) -> str:
    """An id without the size that it names."""
    owner, _, rest = name.casefold().partition("/")
    return f"{owner}/{_SIZE.sub('*', rest)}"


def _generation_id(name: str) -> str:
    """The family without minor versions: Llama 3.1 and 3.2 are one."""
    return re.sub(r"(\d)\.\d+", r"\1", _model_family_id(name))


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
    """A plan in place of the base's.

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
    def planned_as(self) -> Way:
        return "estimated" if self.assumed or self.reshaped else "format"

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """Return what tells plans apart: techniques that store and multiply alike share one."""
        return self.model.digest, self.weight_dtype, self.kv_dtype, self.assumed

    def with_cache_of(self, cached: Change) -> Change:
        return replace(
            self,
            kv_dtype=cached.kv_dtype,
            assumed=self.assumed or cached.assumed,
            notes=(*self.notes, *cached.notes),
        )


@dataclass(frozen=True, slots=True)
class NoChange:
    """The reason, as a sentence, that a technique has no estimate. ``already``: the base is it."""

    why: str
    already: bool = False


def change_of(
    name: str, technique: Technique, base: Setting, verdict: Verdict
) -> Change | NoChange:
    """Return what a technique changes of the base, whose weights lie as ``base`` says.

    Args:
        name: of the technique.
        technique: its bits and kind.
        base: model, device, engine and formats of the base.
        verdict: how the engine runs it on the device.
    """
    entry = estimated_entry(name)
    if entry.unknown:
        return NoChange(entry.unknown)
    if entry.shape:
        return _shape_change(technique, entry, base)
    weights = _weights_change(technique, entry, base, verdict)
    if technique.kv_bits >= 16 or isinstance(weights, NoChange):
        return weights
    return _cache_change(weights, entry, base)


def _shape_change(technique: Technique, entry: Estimated, base: Setting) -> Change | NoChange:
    assert entry.shape is not None  # noqa: S101 - the caller looked
    model = shrink_model(base.model, entry.shape, technique.removed)
    if model is None:
        return NoChange(f"the model {LACKS.get(entry.shape, 'is too small for it')}")
    return Change(model, reshaped=True, notes=_doubt_notes(entry))


def _doubt_notes(entry: Estimated) -> tuple[str, ...]:
    return (entry.doubt,) if entry.doubt else ()


# Weights


def _weights_change(
    technique: Technique, entry: Estimated, base: Setting, verdict: Verdict
) -> Change | NoChange:
    if technique.weight_bits >= 16 and entry.stored_bits is None:
        return Change(base.model)
    if base.weight_dtype not in WIDE:
        return _stored_already(technique, base)
    if technique.weight_dtype is not None and _is_planned_format(technique, entry, base, verdict):
        return Change(base.model, technique.weight_dtype, notes=_doubt_notes(entry))
    return _stored_small(technique, entry, base, verdict)


def _stored_already(technique: Technique, base: Setting) -> NoChange:
    """Of a base that is published in a small format only."""
    stored = base.weight_dtype
    if technique.weight_dtype is not None and stored.split("-")[0] == technique.weight_dtype:
        return NoChange(f"the checkpoint stores {stored} already", already=True)
    return NoChange(
        f"the checkpoint is published in {stored} only: made smaller again it loses twice, and no "
        "figure says how much"
    )


def _is_planned_format(
    technique: Technique, entry: Estimated, base: Setting, verdict: Verdict
) -> bool:
    device, dtype = base.cluster.device, technique.weight_dtype
    if dtype is None or dtype not in device.weight_dtypes or entry.stored_bits is not None:
        return False
    engine = base.engine.wraps or base.engine.name
    support = reply_on_format(base.engine, device.architecture, dtype, "")
    if support is None or support.verdict == "unknown":
        if no_kernels(engine, device.architecture, dtype, "") is not None:
            return False
    elif not support.runs:
        return False
    planned_wide = compute_dtype(dtype, device.peak_flops_per_s) in WIDE
    return planned_wide != (technique.act_bits < 16 and verdict == "native")


def runs_weights(engine: Engine, device: Device, dtype: str) -> bool:
    """Return whether tables or files of engines or devices say that ``dtype`` weights run."""
    support = reply_on_format(engine, device.architecture, dtype, "")
    if dtype in engine.online_weight_dtypes or (support is not None and support.runs):
        return True
    name = engine.wraps or engine.name
    return any(
        row.engines.get(name, "none") != "none"
        for row in dtypes().support
        if row.dtype == dtype and device.architecture in row.architectures
    )


def _stored_small(
    technique: Technique, entry: Estimated, base: Setting, verdict: Verdict
) -> Change | NoChange:
    """Weights of so many bits, multiplied in the technique's format or in 16 bit."""
    device = base.cluster.device
    dtype = WEIGHT_ONLY
    native = verdict == "native" and (technique.act_bits < 16 or entry.rate > 1)
    if native:
        product = _format_at(entry, device)
        if product is None:
            return NoChange(f"no rate of such products is known of {device.title}")
        dtype = product
    quantization = Quantization(
        dtype, WHOLE if entry.whole else MATRIX_ROLES, value_bytes=stored_bits(technique, entry) / 8
    )
    model = replace(base.model, quantization=quantization)
    return Change(model, assumed=True, notes=_doubt_notes(entry))


def _format_at(entry: Estimated, device: Device) -> str | None:
    """A format of the device whose products run at the technique's rate; None where none does.

    Sparse products run at a multiple of their dense rate, which another format has.
    """
    peaks = {str(name): peak.value for name, peak in device.peak_flops_per_s.items()}
    if entry.computes not in peaks:
        return None
    if entry.rate == 1:
        return entry.computes
    rate = entry.rate * peaks[entry.computes]
    return next((name for name, peak in peaks.items() if abs(peak / rate - 1) < 0.02), None)


def stored_bits(technique: Technique, entry: Estimated | None = None) -> float:
    """Bits a weight with its scales.

    Nominal whole bits don't count scales: a 16-bit one and a zero point for each group.
    """
    if entry is not None and entry.stored_bits is not None:
        return entry.stored_bits
    bits = technique.weight_bits
    if technique.group and technique.group.isdecimal() and bits == int(bits):
        return bits + (SCALE_BITS + bits) / int(technique.group)
    return bits


# Cache


def _cache_change(weights: Change, entry: Estimated, base: Setting) -> Change | NoChange:
    if not base.caches:
        return NoChange("an encoder keeps no KV cache")
    dtype = entry.kv
    if dtype is None or dtype not in BYTES_PER_VALUE:
        return NoChange("no plan counts the bytes of such a cache")
    if dtype == base.kv_dtype:
        return NoChange(f"the cache is {dtype} already", already=True)
    device, engine = base.cluster.device, base.engine
    planned = dtype in device.kv_dtypes and dtype in engine.free_kv_dtypes
    return replace(weights, kv_dtype=dtype, assumed=weights.assumed or not planned)
