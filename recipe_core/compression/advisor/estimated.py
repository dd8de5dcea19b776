"""``estimated.yaml``: how techniques are estimated that no plan has as a format."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text

FILE = DataFile(PACKAGE / "compression" / "advisor" / "estimated.yaml", "technique")
# Entry of all types of GGUF files, whose names begin with it.
FAMILY_OF_FILES = "gguf"

# What is left of a model that loses weights.
Shape = Literal["layers", "width", "experts", "factors", "sibling"]


class Estimated(BaseModel):
    """What an estimate of a technique needs beside its bits.

    computes: format of its products where they are formed natively. kv: format of the cache.
    stored_bits: bits a weight of the base, zeros left out, indices included. rate: products over
    those of the dense base. shape: what is left of the model. whole: whether embedding and head are
    stored in it too. doubt: what is left out. unknown: why there is no estimate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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


@cache
def _estimated_entries() -> dict[str, Estimated]:
    return FILE.read_as(_File).techniques


def estimated_entry(technique: str) -> Estimated:
    """How a technique is estimated; as plain stored bits where nothing more is needed."""
    if technique.startswith(f"{FAMILY_OF_FILES}_"):
        return _estimated_entries()[FAMILY_OF_FILES]
    return _estimated_entries().get(technique, Estimated())
