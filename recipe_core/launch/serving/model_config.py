"""Triton's ``config.pbtxt``: a model's settings as protobuf text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A value that is written without quotes: the name of an enum's member."""

    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """An input or output; ``dims`` without the batch, -1 where free."""

    name: str
    data_type: str
    dims: tuple[int, ...]

    def fields(self) -> dict[str, object]:
        """As fields of the message."""
        return {"name": self.name, "data_type": Word(self.data_type), "dims": list(self.dims)}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of a repository.

    ``window_us``: the longest wait for a batch to fill, None for no dynamic batching;
    ``preferred``: batches that leave at once; ``queue``: requests that may wait, 0 for any number.
    ``accelerator``: name and parameters of an execution provider of ONNX Runtime.
    """

    name: str
    backend: str
    max_batch_size: int
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    instances: int
    on_gpu: bool
    window_us: int | None = None
    preferred: tuple[int, ...] = ()
    queue: int = 0
    accelerator: tuple[str, Mapping[str, str]] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The file's content."""
        kind = Word("KIND_GPU" if self.on_gpu else "KIND_CPU")
        fields: dict[str, object] = {
            "name": self.name,
            "backend": self.backend,
            "max_batch_size": self.max_batch_size,
            "input": [place.fields() for place in self.inputs],
            "output": [place.fields() for place in self.outputs],
            "instance_group": [{"count": self.instances, "kind": kind}],
        }
        if self.window_us is not None:
            fields["dynamic_batching"] = self._batching(self.window_us)
        if self.accelerator is not None:
            fields["optimization"] = {
                "execution_accelerators": self._accelerators(*self.accelerator)
            }
        if self.parameters:
            fields["parameters"] = [
                {"key": key, "value": {"string_value": value}}
                for key, value in self.parameters.items()
            ]
        return _message(fields, "")

    def _batching(self, window_us: int) -> dict[str, object]:
        out: dict[str, object] = {"max_queue_delay_microseconds": window_us}
        if self.preferred:
            out = {"preferred_batch_size": list(self.preferred), **out}
        if self.queue:
            out["default_queue_policy"] = {"max_queue_size": self.queue}
        return out

    def _accelerators(self, name: str, stated: Mapping[str, str]) -> dict[str, object]:
        one: dict[str, object] = {"name": name}
        if stated:
            one["parameters"] = [{"key": key, "value": value} for key, value in stated.items()]
        which = "gpu_execution_accelerator" if self.on_gpu else "cpu_execution_accelerator"
        return {which: [one]}


def _message(fields: Mapping[str, object], indent: str) -> str:
    return "".join(_field(name, value, indent) for name, value in fields.items())


def _field(name: str, value: object, indent: str) -> str:
    """One field; a list of messages is the field repeated."""
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return "".join(_field(name, one, indent) for one in value)
        return f"{indent}{name}: [{', '.join(map(_scalar, value))}]\n"
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value: object) -> str:
    if isinstance(value, Word):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    # JSON's escapes are those of protobuf text, but for characters beyond ASCII
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
