"""``tools.yaml``: programs that make smaller checkpoints, and what each can do."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text, WeightDtype

FILE = DataFile(PACKAGE / "accuracy" / "tools.yaml", "options.compression.tool")
GGUF = "gguf_"
"""How names of techniques start that are types of GGUF files."""

LOADS_GGUF = ("llama-cpp",)
"""Engines that load such files."""

Format = Literal["safetensors", "onnx", "openvino", "gguf"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Way(_Data):
    """How a tool is told of a technique.

    ``scheme``: the tool's own name for it, or of ``by_format`` where the weights are in that
    format. ``samples``: texts of calibration that are usual; 0 for none. ``kv``: scales of the KV
    cache are made, too. ``group``: weights that share a scale (0: as the technique says);
    ``runtimes``: where it runs, if not wherever the tool does.
    """

    scheme: Text
    samples: Annotated[int, Field(ge=0)] = 0
    kv: bool = False
    group: Annotated[int, Field(ge=0)] = 0
    runtimes: tuple[Text, ...] = ()
    by_format: dict[WeightDtype, Text] = {}


class Tool(_Data):
    """A program at its pinned version. Fields are explained in the file."""

    title: Text
    version: Text
    module: Text
    requirements: tuple[Text, ...]
    runtimes: tuple[Text, ...]
    format: Format
    loads: tuple[Text, ...]
    source: Text
    makes: dict[str, dict[str, Way]]
    programs: tuple[Text, ...] = ()
    gguf_types: tuple[Text, ...] = ()
    home: Text | None = None
    note: Text | None = None

    def ways(self, technique: str) -> dict[str, Way]:
        """Its methods for a technique, the usual one first; empty where it cannot make it."""
        word = technique.removeprefix(GGUF).upper()
        if technique.startswith(GGUF) and word in self.gguf_types:
            return {"RTN": Way(scheme=word)}
        return self.makes.get(technique, {})

    def format_of(self, technique: str) -> Format:
        """The kind of files that it writes for a technique."""
        return "gguf" if technique.startswith(GGUF) else self.format

    def engines_of(self, technique: str) -> tuple[str, ...]:
        """Engines that load its result."""
        return LOADS_GGUF if technique.startswith(GGUF) else self.loads


class _File(Sourced):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    usual: dict[WeightDtype, Text]
    tools: dict[str, Tool]


@cache
def _file() -> _File:
    return FILE.read_as(_File)


def tools() -> dict[str, Tool]:
    """Every tool by its name, in the order in which ``auto`` tries them."""
    return _file().tools


def tool(name: str) -> Tool:
    """The tool of a name.

    Raises:
        InputError: for a name that no tool has.
    """
    if name not in tools():
        message, hint = unknown("tool", name, list(tools()))
        raise InputError(message, field=FILE.field, hint=hint)
    return tools()[name]


def usual_technique(weight_dtype: str) -> str | None:
    """The technique that a format of weights means; None for 16 and 32 bit."""
    usual = {str(dtype): made for dtype, made in _file().usual.items()}
    return usual.get(weight_dtype)


def makers(technique: str) -> tuple[str, ...]:
    """Names of the tools that can make a technique."""
    return tuple(name for name, one in tools().items() if one.ways(technique))
