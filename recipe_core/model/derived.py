"""Checkpoints that the catalog does not have, read off their names: a model that it has, in the format that the name's ending says.

``nvidia/Qwen3-14B-FP4`` is Qwen3-14B as NVIDIA quantises; ``unsloth/Llama-3.3-70B-Instruct`` is Llama-3.3-70B-Instruct. What is derived
says so in its notes: only its own ``config.json`` is certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from recipe_core.base.documents import read_shipped

CONVENTIONS = Path(__file__).with_name("conventions.yaml")


class Convention(BaseModel):
    """What an ending of a name means; ``like`` is a model of the catalog that follows it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    ending: str
    publishers: tuple[str, ...] = ()
    like: str | None = None
    quantization: dict[str, Any] | None
    experts: tuple[str, ...] = ()

    def base(self, owner: str, name: str) -> str | None:
        """The name without the ending; None where it has none, or the convention is another publisher's."""
        if self.publishers and owner.casefold() not in map(str.casefold, self.publishers):
            return None
        found = re.fullmatch(f"(.+?)(?:{self.ending})", name, re.IGNORECASE)
        return found[1] if found else None

    def applied(self, config: Mapping[str, Any], *, experts: bool) -> dict[str, Any]:
        """The base's configuration with this quantisation in place of its own."""
        if self.quantization is None:
            return {name: value for name, value in config.items() if name != "quantization_config"}
        out = self.quantization
        if experts and self.experts:
            left_out = next(name for name in ("exclude_modules", "exclude") if name in out)
            out = out | {left_out: [*out[left_out], *self.experts]}
        return {**config, "quantization_config": out}


@cache
def conventions() -> tuple[Convention, ...]:
    """All conventions, in the order in which they are tried."""
    return tuple(TypeAdapter(list[Convention]).validate_python(read_shipped(CONVENTIONS)))


def meanings(model_id: str) -> list[tuple[str, Convention | None]]:
    """Names of models that an id may stand for, most likely first, each with the convention that its ending follows (None: a copy).

    What its publisher's own conventions say comes first, then a copy of another owner's model, then what such endings mean elsewhere.
    """
    owner, _, name = model_id.partition("/")
    found: list[tuple[str, Convention | None]] = [
        (base, each) for each in conventions() if (base := each.base(owner, name))
    ]
    own = [each for each in found if each[1] and each[1].publishers]
    return [*own, (name, None), *(each for each in found if each not in own)]
