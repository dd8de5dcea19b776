"""The two models of an encoder's repository: the front where batches form, and the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.serving.encoder_export import OUTPUTS
from recipe_core.launch.serving.model_config import ModelConfig, Place

_ANSWERS = {"embed": "embedding", "score": "score"}


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, and how: names, formats and limits of both models."""

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
        """The encoder's name in the repository."""
        return f"{self.name}-encoder"

    @property
    def on_gpu(self) -> bool:
        """Whether the encoder runs on a GPU."""
        return self.runtime == "cuda"


def front_config(served: Served, stated: Mapping[str, Any]) -> ModelConfig:
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
        preferred=tuple(stated.get("preferred_batch_size", ())),
        queue=stated.get("max_queue_size", 0),
        parameters={
            "encoder": served.encoder,
            "inputs": ",".join(served.inputs),
            "result": OUTPUTS[served.task],
            "output": answer,
            "max_tokens": str(served.tokens),
        },
    )


def encoder_config(served: Served, stated: Mapping[str, Any]) -> ModelConfig:
    """The encoder, which takes whole batches of any size and length."""
    return ModelConfig(
        name=served.encoder,
        backend=served.backend,
        max_batch_size=0,
        inputs=tuple(Place(name, "TYPE_INT64", (-1, -1)) for name in served.inputs),
        outputs=(Place(OUTPUTS[served.task], "TYPE_FP32", (-1, served.width)),),
        instances=served.instances,
        on_gpu=served.on_gpu,
        accelerator=_accelerator(served, stated.get("execution_accelerator")),
        parameters=_parameters(served, stated),
    )


def _accelerator(served: Served, name: str | None) -> tuple[str, Mapping[str, str]] | None:
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


def _parameters(served: Served, stated: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of the backend: OpenVINO's device and hints, threads of ONNX Runtime."""
    out: dict[str, str] = {}
    if served.backend == "openvino":
        out = {
            "TARGET_DEVICE": "CPU",
            "PERFORMANCE_HINT": stated.get("performance_hint", "LATENCY"),
        }
        if served.precision == "bf16":
            out["HINT_BF16"] = "YES"
    if (threads := stated.get("intra_op_thread_count")) is not None:
        name = "INFERENCE_NUM_THREADS" if served.backend == "openvino" else "intra_op_thread_count"
        out[name] = str(threads)
    return out
