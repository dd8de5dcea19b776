"""``techniques.yaml``: ways to make a model smaller, by the names of published tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import KvDtype, Share, Text, WeightDtype


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
