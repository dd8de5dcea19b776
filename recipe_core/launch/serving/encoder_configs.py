"""The two models of an encoder's repository: the front where batches form, and the encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.serving.encoder_export import OUTPUTS

_ANSWERS = {"embed": "embedding", "score": "score"}


@dataclass(frozen=True, slots=True)
class Served:
    """The service to launch: names, formats and limits of both models."""

    name: str
    backend: str
    runtime: str
    task: str
    precision: str
    inputs: tuple[str, ...]
    width: int
    batch: int
    tokens: int
    window_us: int
    instances: int

    @property
    def encoder(self) -> str:
        return f"{self.name}-encoder"

    @property
    def on_gpu(self) -> bool:
        return self.runtime == "cuda"


def front_config(served: Served, options: Mapping[str, Any]) -> ModelConfig:
    """The model that clients ask, whose batcher waits for the window."""
    inputs = ("query", "text") if served.task == "score" else ("text",)
    answer = _ANSWERS[served.task]
    return ModelConfig(
        name=served.name,
        backend="python",
        max_batch_size=served.batch,
        inputs=tuple(Place(name, "TYPE_STRING", (1,)) for name in inputs),
        outputs=(
            Place(answer, "TYPE_FP32", (served.width,)),
            Place("tokens", "TYPE_INT32", (1,)),
        ),
        instances=served.instances,
        on_gpu=False,
        window_us=served.window_us,
        preferred=tuple(options.get("preferred_batch_size", ())),
        queue=options.get("max_queue_size", 0),
        parameters={
            "encoder": served.encoder,
            "inputs": ",".join(served.inputs),
            "result": OUTPUTS[served.task],
            "output": answer,
            "max_tokens": str(served.tokens),
        },
    )


def encoder_config(served: Served, options: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(
        name=served.encoder,
        backend=served.backend,
        max_batch_size=0,
        inputs=tuple(Place(name, "TYPE_INT64", (-1, -1)) for name in served.inputs),
        outputs=(Place(OUTPUTS[served.task], "TYPE_FP32", (-1, served.width)),),
        instances=served.instances,
        on_gpu=served.on_gpu,
        accelerator=_execution_provider(served, options.get("execution_accelerator")),
        parameters=_backend_parameters(served, options),
    )


def _execution_provider(served: Served, name: str | None) -> tuple[str, Mapping[str, str]] | None:
    """An execution provider of ONNX Runtime; TensorRT's builds engines for a range of shapes.

    Raises:
        NoAnswer: for one that the backend or the device does not have.
    """
    if name is None:
        return None
    on = {"cuda": ("cuda", "tensorrt"), "cpu": ("openvino",)}[served.runtime]
    if served.backend != "onnxruntime" or name not in on:
        raise NoAnswer(
            f"{name} is no execution provider here.",
            field="options.engine_options.execution_accelerator",
            hint=f"With triton-onnxruntime on {served.runtime}: {', '.join(on)}.",
        )
    if name != "tensorrt":
        return name, {}

    def shapes(batch: int, tokens: int) -> str:
        return ",".join(f"{place}:{batch}x{tokens}" for place in served.inputs)

    return name, {
        "precision_mode": "FP16" if served.precision == "fp16" else "FP32",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": f"/tmp/{served.name}-engines",  # noqa: S108 - within a container
        "trt_profile_min_shapes": shapes(1, 2),
        "trt_profile_opt_shapes": shapes(max(served.batch // 2, 1), max(served.tokens // 2, 2)),
        "trt_profile_max_shapes": shapes(served.batch, served.tokens),
    }


def _backend_parameters(served: Served, options: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of the backend: OpenVINO's device and hints, threads of ONNX Runtime."""
    out: dict[str, str] = {}
    if served.backend == "openvino":
        out = {
            "TARGET_DEVICE": "CPU",
            "PERFORMANCE_HINT": options.get("performance_hint", "LATENCY"),
        }
        if served.precision == "bf16":
            out["HINT_BF16"] = "YES"
    if (threads := options.get("intra_op_thread_count")) is not None:
        name = "INFERENCE_NUM_THREADS" if served.backend == "openvino" else "intra_op_thread_count"
        out[name] = str(threads)
    return out


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
        return _pbtxt_message(fields, "")

    def _batching(self, window_us: int) -> dict[str, object]:
        out: dict[str, object] = {"max_queue_delay_microseconds": window_us}
        if self.preferred:
            out = {"preferred_batch_size": list(self.preferred), **out}
        if self.queue:
            out["default_queue_policy"] = {"max_queue_size": self.queue}
        return out

    def _accelerators(self, name: str, parameters: Mapping[str, str]) -> dict[str, object]:
        accelerator: dict[str, object] = {"name": name}
        if parameters:
            accelerator["parameters"] = [
                {"key": key, "value": value} for key, value in parameters.items()
            ]
        which = "gpu_execution_accelerator" if self.on_gpu else "cpu_execution_accelerator"
        return {which: [accelerator]}


def _pbtxt_message(fields: Mapping[str, object], indent: str) -> str:
    return "".join(_pbtxt_field(name, value, indent) for name, value in fields.items())


def _pbtxt_field(name: str, value: object, indent: str) -> str:
    """One field; a list of messages is the field repeated."""
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{_pbtxt_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return "".join(_pbtxt_field(name, message, indent) for message in value)
        return f"{indent}{name}: [{', '.join(map(_pbtxt_scalar, value))}]\n"
    return f"{indent}{name}: {_pbtxt_scalar(value)}\n"


def _pbtxt_scalar(value: object) -> str:
    if isinstance(value, Word):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    # JSON's escapes are those of protobuf text, but for characters beyond ASCII
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
