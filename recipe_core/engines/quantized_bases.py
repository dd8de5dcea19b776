"""Frozen bases in four bits as data: ``training/quantized_bases.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Source
from recipe_core.engines.frameworks import Number

# Quantisers whose 4-bit checkpoints adapters are trained on as they are stored.
CHECKPOINTS = ("gptq", "awq")


class QuantizedBase(DataRow):
    """A frozen weight as it is stored, and the cost of one pass over it.

    ``parameter_bytes`` are divided and gathered as parameters are, ``buffer_bytes`` are whole on
    every device. A pass moves ``moved_bytes`` and takes ``operations`` (of fp32, on a
    multiprocessor with 64 lanes) a weight, in ``starts`` kernels a matrix; the matrix in use takes
    ``transient_bytes`` a weight.
    """

    title: str
    parameter_bytes: Number
    buffer_bytes: Number
    moved_bytes: Number
    operations: Number
    starts: Annotated[float, Field(ge=1)]
    transient_bytes: Number

    @property
    def stored_bytes(self) -> float:
        """Bytes of a weight on a device that has all of them."""
        return self.parameter_bytes.value + self.buffer_bytes.value


class QuantizedBases(DataRow):
    """The file ``quantized_bases.yaml``.

    ``start_s``: host time of a kernel; ``lanes``: of a multiprocessor, by architecture.
    """

    schema_version: Literal[1]
    sources: dict[str, Source]
    start_s: Number
    lanes: dict[str, Number]
    bases: dict[str, QuantizedBase]

    def wider(self, architecture: str) -> float:
        """Lanes of a device's multiprocessors, of the 64 that ``operations`` stand for."""
        return self.lanes.get(architecture, self.lanes["any"]).value / 64.0


@cache
def quantized_bases() -> QuantizedBases:
    """The data this version ships."""
    path = Path(__file__).with_name("training") / "quantized_bases.yaml"
    return DataFile(path, "engines").read_as(QuantizedBases)


def checkpoint_base(scheme: str, weight_bytes: float) -> QuantizedBase | None:
    """The base that a checkpoint of this scheme is, at the bytes that it stores; None for others.

    ``scheme``: who wrote the checkpoint and what a scale covers, as in `Quantization`.
    """
    writer = scheme.partition("/")[0].removesuffix("_marlin")
    if writer not in CHECKPOINTS:
        return None
    base = quantized_bases().bases[writer]
    stored = base.buffer_bytes.model_copy(update={"value": weight_bytes})
    return base.model_copy(update={"buffer_bytes": stored})
