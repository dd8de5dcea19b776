"""The two models of an encoder's repository: the front where batches form, and the encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.serving.encoder_export import OUTPUTS
from recipe_core.launch.templates import fill_template, read_templates

FILE = Path(__file__).with_suffix(".yaml")
_ANSWERS = {"embed": "embedding", "score": "score"}
# Fields whose values are written without quotes: names of an enum's members.
_ENUMS = ("data_type", "kind")


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


def front_config(served: Served, options: Mapping[str, Any]) -> str:
    """The file of the model that clients ask, whose batcher waits for the window."""
    answer = _ANSWERS[served.task]
    parameters = {
        "encoder": served.encoder,
        "inputs": ",".join(served.inputs),
        "result": OUTPUTS[served.task],
        "output": answer,
        "max_tokens": str(served.tokens),
    }
    query = read_templates(FILE)["query"] if served.task == "score" else None
    preferred = list(options.get("preferred_batch_size", ()))
    return _model_config(
        "front",
        served,
        parameters,
        query=query,
        answer=answer,
        preferred=preferred or None,
        queue=options.get("max_queue_size") or None,
    )


def encoder_config(served: Served, options: Mapping[str, Any]) -> str:
    """The file of the encoder.

    Raises:
        NoAnswer: for an execution provider that the backend or the device does not have.
    """
    template = read_templates(FILE)["input"]
    return _model_config(
        "encoder",
        served,
        _backend_parameters(served, options),
        encoder=served.encoder,
        inputs=[fill_template(template, {"input": name}) for name in served.inputs],
        result=OUTPUTS[served.task],
        device_kind="KIND_GPU" if served.on_gpu else "KIND_CPU",
        accelerators=_execution_accelerators(served, options.get("execution_accelerator")),
    )


def _model_config(model: str, served: Served, parameters: Mapping[str, str], **more: Any) -> str:
    entries = [
        {"key": key, "value": {"string_value": value}} for key, value in parameters.items()
    ] or None
    values = {**asdict(served), "parameters": entries, **more}
    return _pbtxt_message(fill_template(read_templates(FILE)[model], values), "")


def _execution_accelerators(served: Served, name: str | None) -> dict[str, Any] | None:
    """An execution provider of ONNX Runtime; TensorRT's builds engines for a range of shapes."""
    if name is None:
        return None
    on = {"cuda": ("cuda", "tensorrt"), "cpu": ("openvino",)}[served.runtime]
    if served.backend != "onnxruntime" or name not in on:
        raise NoAnswer(
            f"{name} is no execution provider here.",
            field="options.engine_options.execution_accelerator",
            hint=f"With triton-onnxruntime on {served.runtime}: {', '.join(on)}.",
        )
    accelerator: dict[str, Any] = {"name": name}
    if name == "tensorrt":
        accelerator["parameters"] = [
            {"key": key, "value": value} for key, value in _tensorrt_parameters(served).items()
        ]
    kind = "gpu_execution_accelerator" if served.on_gpu else "cpu_execution_accelerator"
    return {kind: [accelerator]}


def _tensorrt_parameters(served: Served) -> dict[str, str]:
    def shapes(batch: int, tokens: int) -> str:
        return ",".join(f"{place}:{batch}x{tokens}" for place in served.inputs)

    return {
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


def _pbtxt_message(fields: Mapping[str, object], indent: str) -> str:
    return "".join(_pbtxt_field(name, value, indent) for name, value in fields.items())


def _pbtxt_field(name: str, value: object, indent: str) -> str:
    """One field; a list of messages is the field repeated."""
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{_pbtxt_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return "".join(_pbtxt_field(name, message, indent) for message in value)
        return f"{indent}{name}: [{', '.join(map(str, value))}]\n"
    # JSON's escapes are those of protobuf text, but for characters beyond ASCII
    quoted = isinstance(value, str) and name not in _ENUMS
    return f"{indent}{name}: {json.dumps(value, ensure_ascii=False) if quoted else value}\n"
