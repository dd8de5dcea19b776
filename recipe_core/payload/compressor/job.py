"""``JOB.json``: what is compressed, how, and what is held against the base afterwards.

    {
      "schema_version": 1,
      "source": "model",                      folder of the base, relative to the file
      "output": "compressed",                 folder to write, relative to the file
      "technique": "int4_weight_only",        names of published tables
      "tool": "embedded",                     what makes it; others' output is only verified
      "format": "safetensors",                others' output: onnx, openvino, gguf
      "method": "rtn",                        algorithm of the technique; "" for its usual one
      "options": {"ignore": ["lm_head"]},     see ``Options``
      "calibration": {"text": null, "samples": 32, "tokens": 256},
      "verify": {"text": null, "tokens": 2048, "prompts": 4, "new_tokens": 32,
                 "least_retained": 0.95}
    }

Standard library only.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union

from .errors import CompressError

Format = Literal["safetensors", "onnx", "openvino", "gguf"]
FORMATS: tuple[Format, ...] = typing.get_args(Format)
# The tool that is this program.
EMBEDDED = "embedded"
GGUF_PREFIX = "gguf_"


def _count_field(low: int, default: int | None) -> Any:
    """A field of at least so much, and what it is where a job leaves it out."""
    return field(default=default, metadata={"low": low})


@dataclass(frozen=True)
class Options:
    """The options of a job; one that a technique does not use is refused where it matters.

    group: weights that share a scale (None: the technique's usual number). symmetric: without zero
    points. ignore: modules that stay as they are, by the end of their names.
    """

    group: int | None = _count_field(1, None)
    symmetric: bool = True
    ignore: tuple[str, ...] = ("lm_head",)


@dataclass(frozen=True)
class Calibration:
    """Texts that methods with activations look at: ``samples`` windows of ``tokens`` each.

    text: a file, relative to the job; None: the bundled one.
    """

    text: str | None = None
    samples: int = _count_field(1, 32)
    tokens: int = _count_field(16, 256)


@dataclass(frozen=True)
class Verify:
    """The test of a result: the first ``tokens`` of ``text``, and greedy continuations.

    prompts, prompt_tokens, new_tokens: how many, after how much of the text, how long. window:
    tokens that a perplexity is conditioned on at most; every token but the first of the text is
    predicted once, with at least half a window before it. least_retained: least share of the
    base's perplexity kept (base / result) that passes; None: any. runs: repetitions of the
    timings, of which the median counts.
    """

    text: str | None = None
    tokens: int = _count_field(16, 2048)
    window: int = _count_field(16, 256)
    prompts: int = _count_field(0, 4)
    prompt_tokens: int = _count_field(1, 32)
    new_tokens: int = _count_field(1, 32)
    runs: int = _count_field(1, 3)
    least_retained: float | None = None


@dataclass(frozen=True)
class Job:
    """All of ``JOB.json``; ``verify`` null: nothing is measured."""

    schema_version: Literal[1]
    source: str
    output: str
    technique: str
    tool: str = EMBEDDED
    format: Format | None = None
    method: str = ""
    options: Options = Options()
    calibration: Calibration = Calibration()
    verify: Verify | None = field(default=Verify())
    root: Path = field(default=Path(), metadata={"file": False})
    """The folder of the file, which its paths are relative to."""

    @property
    def source_folder(self) -> Path:
        return self.root / self.source

    @property
    def output_folder(self) -> Path:
        return self.root / self.output

    @property
    def written(self) -> Format:
        """The format of the result: the stated one, or that of the technique."""
        if self.format is not None:
            return self.format
        return "gguf" if self.technique.startswith(GGUF_PREFIX) else "safetensors"

    def text(self, text_path: str | None) -> Path:
        return self.root / text_path if text_path else Path(__file__).with_name("text.txt")


def load_job(path: Path) -> Job:
    """Read ``path``.

    Raises:
        CompressError: when it is not a JSON object, or a field is unknown, missing, mistyped or out
            of range; the message names it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompressError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise CompressError(f"{path} is not JSON: {error}.") from None
    return read_job(value, path.name, path.resolve().parent)


def read_job(value: Any, name: str = "job", root: Path = Path()) -> Job:
    """A job of plain values; raises as `load_job` does."""
    job: Job = _parse_job_value(value, Job, name)
    _check_compress_job(job, name)
    return replace(job, root=root)


def _check_compress_job(job: Job, name: str) -> None:
    share = job.verify.least_retained if job.verify is not None else None
    if share is not None and not 0 < share <= 1:
        path = "verify.least_retained"
        raise CompressError(f"{name}.{path} is {share}.", hint="Use a share above 0, 1 at most.")
    if Path(job.source) == Path(job.output):
        raise CompressError(
            f"{name}.output is {job.output!r}, which is the source.", hint="Name another folder."
        )
    if job.technique.startswith(GGUF_PREFIX) and job.written != "gguf":
        hint = "Leave format out, or name another technique."
        raise CompressError(f"{name}.format is {job.format!r} for {job.technique}.", hint=hint)


def _parse_job_value(value: Any, kind: Any, path: str) -> Any:
    """``value`` as ``kind``: a dataclass, tuple, optional or literal value, number or text."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _parse_job_object(value, kind, path)
    if origin in (Union, types.UnionType):
        return None if value is None else _parse_job_value(value, arguments[0], path)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            hint = f"Use {' or '.join(map(repr, arguments))}."
            raise CompressError(f"{path} is {value!r}.", hint=hint)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise CompressError(f"{path} is {value!r}, not a list.")
        return tuple(
            _parse_job_value(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value)
        )
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CompressError(f"{path} is {value!r}, not {kind.__name__}.")
    return value


def _parse_job_object(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise CompressError(f"{path} is {value!r}, not an object.")
    hints = typing.get_type_hints(kind)
    fields_by_name = {
        job_field.name: job_field
        for job_field in fields(kind)
        if job_field.metadata.get("file", True)
    }
    if extra := sorted(value.keys() - fields_by_name.keys()):
        raise CompressError(
            f"{path}.{extra[0]} is unknown.", hint=f"Available: {', '.join(fields_by_name)}."
        )
    for name, job_field in fields_by_name.items():
        if name not in value and job_field.default is MISSING:
            raise CompressError(f"{path}.{name} is missing.")
    values = {
        name: _parse_job_value(item, hints[name], f"{path}.{name}") for name, item in value.items()
    }
    for name, number in values.items():
        low = fields_by_name[name].metadata.get("low")
        if low is not None and number is not None and number < low:
            raise CompressError(f"{path}.{name} is {number}.", hint=f"Use at least {low}.")
    return kind(**values)
