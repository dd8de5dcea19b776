"""Ways to make a model smaller, by names of published tables and by schemes of checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import KvDtype, Share, Text, WeightDtype
from recipe_core.models.spec import ModelSpec


class Titled(DataRow):
    """One entry of a file; short: what it is called where room is scarce."""

    title: Text
    short: Text | None = None

    @property
    def label(self) -> str:
        return self.short or self.title


Kind = Literal[
    "weights",
    "weights and activations",
    "kv cache",
    "sparsity",
    "pruning",
    "low rank",
    "distillation",
    "lossless",
]
Bits = Annotated[float, Field(gt=0, le=16)]


class Technique(Titled):
    """One way to make a model smaller.

    Bits a value, nominal: FP4 formats count their scales, integer formats do not. removed: share of
    the weights that is removed, where a name does not say it. group: weights that share a scale
    unless a method says otherwise ("channel": one for each output). weight_dtype, kv_dtype: the
    format of a plan that it is, where a plan has it. parts: the techniques that it consists of.
    weights_of: the technique whose weights alone it is.
    """

    kind: Kind
    weight_bits: Bits = 16
    act_bits: Bits = 16
    kv_bits: Bits = 16
    removed: Share = 0
    group: Text | None = None
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype | None = None
    parts: tuple[Text, ...] = ()
    weights_of: Text | None = None
    note: Text | None = None


class _File(DataRow):
    schema_version: Literal[1]
    techniques: dict[str, Technique]


FILE = DataFile(PACKAGE / "accuracy" / "techniques.yaml", "technique")
_TABLE = DataTable[Technique](FILE, _File, "techniques", "technique")


def techniques() -> dict[str, Technique]:
    return _TABLE.rows


def technique(name: str) -> Technique:
    """The technique of a name.

    Raises:
        InputError: for a name that no technique has.
    """
    return _TABLE.row(name)


SCHEMES_FILE = DataFile(PACKAGE / "accuracy" / "schemes.yaml", "model")


@dataclass(frozen=True, slots=True)
class Making:
    """The way in which a checkpoint was made.

    method: the algorithm, "" where it is not known. weights_only: whether activations stay in 16
    bit on any device. technique: "" where the stored format says it.
    """

    method: str = ""
    weights_only: bool = False
    technique: str = ""


class _Row(DataRow):
    scheme: Text | None = None
    name: Text | None = None
    dtype: WeightDtype | None = None
    method: Text | None = None
    weights_only: bool | None = None
    technique: Text | None = None

    def agrees(self, scheme: str, name: str, dtype: str) -> bool:
        """Return whether the row speaks of such a checkpoint."""
        patterns = ((self.scheme, scheme), (self.name, name))
        patterns_match = all(
            pattern is None or re.search(pattern, text, re.IGNORECASE) for pattern, text in patterns
        )
        return patterns_match and self.dtype in (None, dtype)

    def technique_of(self, scheme: str) -> str:
        """The technique, with the groups of the scheme that it names; "" without."""
        match = re.search(self.scheme, scheme) if self.scheme else None
        if self.technique is None or match is None:
            return self.technique or ""
        name = match.expand(self.technique).lower()
        return name if name in techniques() else ""


class _SchemesFile(DataRow):
    schema_version: Literal[1]
    rows: tuple[_Row, ...]


@cache
def _scheme_rows() -> tuple[_Row, ...]:
    rows = SCHEMES_FILE.read_as(_SchemesFile).rows
    for row in rows:
        if row.technique is not None and "\\" not in row.technique:
            technique(row.technique)
    return rows


def checkpoint_making(model: ModelSpec) -> Making:
    """Return how a quantised checkpoint was made; nothing is known of one that is not quantised."""
    stored = model.quantization
    if stored is None:
        return Making()
    rows = [row for row in _scheme_rows() if row.agrees(stored.scheme, model.name, stored.dtype)]
    return Making(
        next((row.method for row in rows if row.method is not None), ""),
        next((row.weights_only for row in rows if row.weights_only is not None), False),
        next(filter(None, (row.technique_of(stored.scheme) for row in rows)), ""),
    )


@cache
def weight_technique(dtype: str, *, computed: bool) -> str:
    """The technique that stores weights in a format of plans.

    ``computed``: whether activations are in the format too, where there is such a technique.

    Raises:
        KeyError: for a format that no technique is, such as one of 16 bit.
    """
    alone = {name: spec for name, spec in techniques().items() if _is_weight_format(spec, dtype)}
    narrow = {name: spec for name, spec in alone.items() if spec.act_bits < 16}
    wide = {name: spec for name, spec in alone.items() if spec.act_bits >= 16}
    for candidates in (narrow, wide) if computed else (wide, narrow):
        if candidates:
            return next(iter(candidates))
    raise KeyError(dtype)


def _is_weight_format(spec: Technique, dtype: str) -> bool:
    """Return whether a technique is a format of weights alone: no cache format, nothing removed."""
    stored = "fp8" if dtype.startswith("fp8") else dtype
    return spec.weight_dtype == stored and spec.kv_bits >= 16 and not spec.removed


@cache
def cache_technique(dtype: str) -> str:
    """The technique that keeps the cache in a format of plans; KeyError where none is."""
    for name, spec in techniques().items():
        if spec.kind == "kv cache" and spec.kv_dtype == dtype:
            return name
    raise KeyError(dtype)


def joint_techniques(weights: str, cached: str) -> tuple[str, ...]:
    """Techniques of weights and cache: one where published tables have both as one."""
    if weights and technique(weights).kv_bits < 16:
        return (weights,)
    joint = f"{weights}_{cached}"
    if weights and cached and joint in techniques():
        return (joint,)
    return tuple(filter(None, (weights, cached)))
