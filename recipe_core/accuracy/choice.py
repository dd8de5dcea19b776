"""From ``options.compression`` and the format of a split's weights to one tool and method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.accuracy.technique import Technique, technique
from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text, WeightDtype
from recipe_core.engines.spec import engine as engine_named
from recipe_core.request.compression import Compression
from recipe_core.request.schema import Options

FILE = DataFile(PACKAGE / "accuracy" / "tools.yaml", "options.compression.tool")
# How names of techniques start that are types of GGUF files.
GGUF = "gguf_"

# Engines that load such files.
LOADS_GGUF = ("llama-cpp",)

Format = Literal["safetensors", "onnx", "openvino", "gguf"]


class Way(DataRow):
    """The words by which a tool is told of a technique.

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
    by_format: Mapping[WeightDtype, Text] = {}


class Tool(DataRow):
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
        return "gguf" if technique.startswith(GGUF) else self.format

    def engines_of(self, technique: str) -> tuple[str, ...]:
        return LOADS_GGUF if technique.startswith(GGUF) else self.loads


class _File(Sourced):
    usual: dict[WeightDtype, Text]
    tools: dict[str, Tool]


_TABLE = DataTable[Tool](FILE, _File, "tools", "tool")


def tools() -> dict[str, Tool]:
    """Every tool by its name, in the order in which ``auto`` tries them."""
    return _TABLE.rows


def tool(name: str) -> Tool:
    """The tool of a name.

    Raises:
        InputError: for a name that no tool has.
    """
    return _TABLE.row(name)


def usual_technique(weight_dtype: str) -> str | None:
    """The technique that a format of weights means; None for 16 and 32 bit."""
    usual = {str(dtype): technique_name for dtype, technique_name in _TABLE.document.usual.items()}
    return usual.get(weight_dtype)


def makers(technique: str) -> tuple[str, ...]:
    return tuple(name for name, program in tools().items() if program.ways(technique))


FIELD = "options.compression"
# GGUF types of up to so many bits a weight are planned as 4-bit weights, others as 8-bit ones.
_FEW_BITS = 6.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A checkpoint to make: by which tool and method, and how.

    ``scheme``: the tool's own name for it. ``samples`` texts of ``tokens`` tokens calibrate it (0:
    none), ``text``: a file of them (None: the bundle's). ``kv``: scales of the KV cache, too.
    ``group``: weights along a row that share a scale; 1 where rows may have any length.
    ``weight_dtype``: the format of a plan that the result has.
    """

    technique: str
    tool: str
    method: str
    scheme: str
    samples: int
    tokens: int
    text: str | None
    kv: bool
    group: int
    weight_dtype: str
    request: Compression

    @property
    def program(self) -> Tool:
        return tool(self.tool)

    @property
    def kind(self) -> Technique:
        return technique(self.technique)

    @property
    def format(self) -> str:
        return self.program.format_of(self.technique)

    @property
    def title(self) -> str:
        """In words: LLM Compressor 0.14.0.1, GPTQ, INT4 weights."""
        return f"{self.program.title} {self.program.version}, {self.method}, {self.kind.title}"

    def output(self, model: str) -> str:
        """Name of the folder of the result."""
        if self.request.output:
            return self.request.output
        name = f"{model.rpartition('/')[2]}-{self.technique}".replace("_", "-")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-.") or "compressed"


def weight_dtypes(options: Options) -> tuple[str, ...]:
    """The formats of weights to judge: those stated, else the one of a technique that is made."""
    compression = options.compression
    if compression is None or compression.technique is None or options.weight_dtypes != ("auto",):
        return options.weight_dtypes
    return (planned_dtype(compression.technique) or "auto",)


def planned_dtype(name: str) -> str | None:
    """The format of a plan that a technique is estimated as; None where there is none.

    Raises:
        InputError: for a name that no technique has.
    """
    spec = _requested_technique(name)
    if spec.weight_dtype is not None:
        return spec.weight_dtype
    if name.startswith(GGUF):
        return "int4" if spec.weight_bits <= _FEW_BITS else "int8"
    return None


def choose_tool(
    compression: Compression, weight_dtype: str, engine: str, runtime: str, *, needed: bool
) -> Chosen | None:
    """Return what is made for a split; None where its checkpoint serves as it is.

    Args:
        compression: the request's.
        weight_dtype: format of the split's weights.
        engine: what loads the result.
        runtime: what programs the devices that make it (cuda, rocm, cpu).
        needed: whether the engine can have these weights in no other way.

    Raises:
        InputError: for a technique, tool or method that is unknown or cannot be combined.
        NoAnswer: where no tool makes what this engine loads.
    """
    name = compression.technique or (usual_technique(weight_dtype) if needed else None)
    if name is None:
        return None
    _requested_technique(name)
    if not needed and not _same_format(name, weight_dtype):
        return None
    names: list[str] = [compression.tool]
    if compression.tool == "auto":  # a tool made for these devices before the others
        names = sorted(makers(name), key=lambda tool_name: tool(tool_name).home != runtime)
    loading = _loading_engines(engine)
    problems = []
    for tool_name in names:
        problem = _tool_problem(tool_name, name, compression.method, loading, runtime)
        if problem is None:
            return _choose_method(compression, name, tool_name, weight_dtype)
        problems.append(problem)
    if problems and compression.tool != "auto":
        raise problems[0]
    raise NoAnswer(
        f"no tool makes {name} that {engine} loads on {runtime}"
        + (f" by {compression.method}." if compression.method != "auto" else "."),
        field=f"{FIELD}.technique",
        hint=_other_tools_hint(name, loading),
    )


def can_make(compression: Compression | None, weight_dtype: str, engine: str, runtime: str) -> bool:
    """Return whether a split whose weights no checkpoint holds can have them made."""
    if compression is None:
        return False
    try:
        return choose_tool(compression, weight_dtype, engine, runtime, needed=True) is not None
    except (InputError, NoAnswer):
        return False


def _requested_technique(name: str) -> Technique:
    try:
        return technique(name)
    except InputError as error:
        raise InputError(error.message, field=f"{FIELD}.technique", hint=error.hint) from None


def _same_format(name: str, weight_dtype: str) -> bool:
    planned = planned_dtype(name)
    return planned is not None and planned.partition("-")[0] == weight_dtype.partition("-")[0]


def _loading_engines(engine: str) -> tuple[str, ...]:
    wrapped = engine_named(engine).wraps
    return (engine, wrapped) if wrapped else (engine,)


def _tool_problem(
    tool_name: str, technique_name: str, method: str, engines: tuple[str, ...], runtime: str
) -> InputError | None:
    """Say why a tool cannot do it; None where it can."""
    program = tool(tool_name)
    ways = program.ways(technique_name)
    if not ways:
        able = ", ".join(makers(technique_name)) or "none"
        return InputError(
            f"{program.title} {program.version} does not make {technique_name}.",
            field=f"{FIELD}.tool",
            hint=f"Tools that do: {able}.",
        )
    if method not in ("auto", *ways):
        return InputError(
            f"{program.title} {program.version} makes {technique_name} by {_join_names(ways)}, "
            f"not by {method}.",
            field=f"{FIELD}.method",
            hint=f"Use method: {next(iter(ways))}, or leave it out.",
        )
    loads = program.engines_of(technique_name)
    if not set(engines) & set(loads):
        return InputError(
            f"{engines[0]} does not load what {program.title} writes.",
            field=f"{FIELD}.tool",
            hint=f"It is loaded by {_join_names(loads)}; use tool: auto or another engine.",
        )
    if runtime not in program.runtimes:
        return InputError(
            f"{program.title} runs on {_join_names(program.runtimes)}, not on {runtime}.",
            field=f"{FIELD}.tool",
            hint="Use tool: auto.",
        )
    settings = ways.get(method)
    if settings is not None and settings.runtimes and runtime not in settings.runtimes:
        return InputError(
            f"{method} of {program.title} runs on {_join_names(settings.runtimes)}, "
            f"not on {runtime}.",
            field=f"{FIELD}.method",
            hint="Leave it out, or use another tool.",
        )
    return None


def _join_names(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _other_tools_hint(name: str, engines: tuple[str, ...]) -> str:
    """Say what could be asked for instead."""
    able = [
        makeable
        for program in tools().values()
        if set(engines) & set(program.loads)
        for makeable in program.makes
    ]
    loaders = sorted({engine for maker in makers(name) for engine in tool(maker).engines_of(name)})
    if loaders:
        return f"It is made for {_join_names(loaders)}."
    return f"Made for {engines[0]}: {', '.join(sorted(set(able))) or 'nothing'}."


def _usual_group_size(technique_name: str) -> int:
    """Weights that share a scale, as a technique usually has it; 1 for whole rows."""
    group = technique(technique_name).group or ""
    return int(group) if group.isdigit() else 1


def _choose_method(
    compression: Compression, technique_name: str, tool_name: str, weight_dtype: str
) -> Chosen:
    ways = tool(tool_name).ways(technique_name)
    method = compression.method if compression.method != "auto" else next(iter(ways))
    settings: Way = ways[method]
    formats = {str(dtype): scheme for dtype, scheme in settings.by_format.items()}
    calibration = compression.calibration
    return Chosen(
        technique=technique_name,
        tool=tool_name,
        method=method,
        scheme=formats.get(weight_dtype, settings.scheme),
        samples=(calibration.samples or settings.samples) if settings.samples else 0,
        tokens=calibration.tokens,
        text=calibration.text,
        kv=settings.kv,
        group=settings.group or _usual_group_size(technique_name),
        weight_dtype=weight_dtype,
        request=compression,
    )
