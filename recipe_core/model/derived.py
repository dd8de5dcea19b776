"""Checkpoints that the catalog lacks, recognised by their names.

``nvidia/Qwen3-14B-FP4`` is Qwen3-14B as NVIDIA quantises; ``unsloth/Llama-3.3-70B-Instruct`` is
Llama-3.3-70B-Instruct. A derived model says so in its notes: only its own ``config.json`` is
certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from recipe_core.base.documents import read_shipped
from recipe_core.model.spec import LinearAttention, ModelSpec

CONVENTIONS = Path(__file__).with_name("conventions.yaml")


class Convention(BaseModel):
    """What an ending of a name means; ``like`` is a model of the catalog that follows it.

    ``hybrid``: only for models with layers of linear attention.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    ending: str
    publishers: tuple[str, ...] = ()
    like: str | None = None
    hybrid: bool = False
    quantization: dict[str, Any] | None
    experts: tuple[str, ...] = ()

    def concerns(self, base: ModelSpec) -> bool:
        """Whether it says something about copies of this model."""
        return not self.hybrid or any(isinstance(a, LinearAttention) for a, _ in base.mixers)

    def base(self, owner: str, name: str) -> str | None:
        """The name without the ending; None without it, or under another publisher's convention."""
        if self.publishers and owner.casefold() not in map(str.casefold, self.publishers):
            return None
        match = re.fullmatch(f"(.+?)(?:{self.ending})", name, re.IGNORECASE)
        return match[1] if match else None

    def applied(self, config: Mapping[str, Any], *, experts: bool) -> dict[str, Any]:
        """The base's configuration with this quantisation in place of its own."""
        if self.quantization is None:
            return {name: value for name, value in config.items() if name != "quantization_config"}
        out = self.quantization
        if experts and self.experts:
            left_out = next(
                name for name in ("exclude_modules", "exclude", "ignore") if name in out
            )
            out = {**out, left_out: [*out[left_out], *self.experts]}
        return {**config, "quantization_config": out}


@cache
def conventions() -> tuple[Convention, ...]:
    """All conventions, in the order in which they are tried."""
    return tuple(TypeAdapter(list[Convention]).validate_python(read_shipped(CONVENTIONS)))


def meanings(model_id: str) -> list[tuple[str, Convention | None]]:
    """The models that an id may stand for, most likely first, with the convention it follows.

    First what its publisher's conventions say, then a copy of another owner's model (None), then
    what such endings mean elsewhere.
    """
    owner, _, name = model_id.partition("/")
    publishers: list[tuple[str, Convention | None]] = []
    general: list[tuple[str, Convention | None]] = []
    for convention in conventions():
        if base := convention.base(owner, name):
            (publishers if convention.publishers else general).append((base, convention))
    return [*publishers, (name, None), *general]
