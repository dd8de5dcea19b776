"""Triton Inference Server with an encoder: texts in, vectors or scores out.

Two models a repository: a front (Python), where batches form and texts become tokens, and the
encoder, by the engine's backend. The front sends each batch as one request, so that the encoder
has free shapes and no batcher of its own: OpenVINO's backend would pad every batch to the largest
(``ov::set_batch`` in its ``src/openvino.cc``), and Triton joins only requests of equal shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.serving import largest_batch
from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.encoder_configs import Served, encoder_config, front_config
from recipe_core.launch.serving.encoder_export import FILES
from recipe_core.launch.serving.groups import Group, engine_groups, group_processes
from recipe_core.launch.serving.triton import FOLDER, server_options
from recipe_core.launch.user_options import check_options

STARTUP_TIMEOUT_S = 1800
COPY = "${run}/repository"
HERE = Path(__file__).parent
START, EXPORT = "engine/encoder_start.py", "engine/encoder_export.py"
CONTAINER = "engine/Containerfile"
# Options that stand in config.pbtxt, not on the command.
OF_MODELS = (
    "execution_accelerator",
    "intra_op_thread_count",
    "max_queue_size",
    "performance_hint",
    "preferred_batch_size",
)
# What an export needs, for pip.
PACKAGES = "numpy onnx onnxruntime onnxscript nncf openvino tokenizers torch transformers"


def launch_triton_encoders(deployment: Deployment) -> Launch:
    """One server per replica, each on a device of its own with ports of its own."""
    engine = deployment.setting.engine
    served = served_of(deployment)
    placed = engine_groups(deployment)
    options, extra, of_model = _encoder_options(deployment, served)
    environment = rules.rule_environment(deployment)
    started = group_processes(
        placed,
        lambda group, rank: _encoder_server_words(deployment, served, group, extra),
        lambda group, rank: dict(environment),
    )
    return Launch(
        processes=tuple(started),
        options=options | extra | of_model,
        health="/v2/health/ready",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path=f"/v2/models/{served.name}/infer",
        api_model=served.name,
        api_body={"query": "Which words are these?"} if served.task == "score" else {},
        requires=("tokenizers", "numpy"),
        files={
            **_encoder_repository_files(served, of_model),
            CONTAINER: _triton_containerfile(engine.images),
        },
    )


def served_of(deployment: Deployment) -> Served:
    """Return what a deployment serves.

    Raises:
        NoAnswer: for weights in a format that the export does not make for this backend.
    """
    setting, candidate = deployment.setting, deployment.candidate
    backend = setting.engine.name.removeprefix("triton-")
    runtime = setting.cluster.device.runtime
    formats = setting.engine.exports.get(runtime, {})
    precision = formats.get(setting.weight_dtype)
    if precision is None:
        raise NoAnswer(
            f"{setting.engine.title} is not given {setting.weight_dtype} weights on {runtime}.",
            field="candidate.weight_dtype",
            hint=f"Choose one of: {', '.join(formats) or 'another engine'}.",
        )
    if not setting.model.is_encoder and setting.model.task == "score":
        raise NoAnswer(
            f"{setting.model.name} is a decoder, whose scores are not exported for this engine.",
            field="candidate.engine",
            hint="Use vllm for decoders that score.",
        )
    longest = min(deployment.max_context, setting.model.max_context)
    batch = largest_batch(candidate.max_num_seqs, candidate.max_batched_tokens, longest)
    return Served(
        name=deployment.served_name,
        backend=backend,
        runtime=runtime,
        task=setting.model.task,
        precision=precision,
        inputs=_encoder_inputs(deployment),
        width=setting.model.hidden if setting.model.task == "embed" else 1,
        batch=int(batch),
        tokens=longest,
        window_us=round(candidate.batch_window_ms * 1000),
        instances=candidate.instances,
    )


def _encoder_inputs(deployment: Deployment) -> tuple[str, ...]:
    """Inputs of the encoder: segments too where a pair of texts is told apart by them."""
    model = deployment.setting.model
    segments = any(
        table.role == "embedding" and table.name == "type_embedding" and table.numel > model.hidden
        for table in model.extras
    )
    pairs = ("token_type_ids",) if segments and model.task == "score" else ()
    return ("input_ids", "attention_mask", *pairs)


def _encoder_options(
    deployment: Deployment, served: Served
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return options the estimate depends on, and the user's of the server and of the models."""
    engine = deployment.setting.engine
    options: dict[str, Any] = {
        "max_batch_size": served.batch,
        "max_queue_delay_microseconds": served.window_us,
        "instance_count": served.instances,
        "max_tokens": served.tokens,
        "precision": served.precision,
    }
    ours = {*options, "model_repository", "http_address", "http_port", "metrics_port"}
    engine_options = check_options(deployment.engine_options, engine, engine.options, ours)
    of_model = {name: value for name, value in engine_options.items() if name in OF_MODELS}
    extra = {name: value for name, value in engine_options.items() if name not in OF_MODELS}
    return options, extra, of_model


def _encoder_server_words(
    deployment: Deployment, served: Served, group: Group, extra: Mapping[str, Any]
) -> tuple[str, ...]:
    """Export where that was not done yet, then serve."""
    argv = deployment.setting.engine.argv(server_options(COPY, group) | dict(extra))
    export = (
        *("python3", f"${{root}}/{EXPORT}", "--model", "${model}", "--task", served.task),
        *("--backend", served.backend, "--precision", served.precision),
        *("--inputs", ",".join(served.inputs)),
        *("--max-batch", str(served.batch), "--max-tokens", str(served.tokens)),
    )
    places = (f"${{root}}/{FOLDER}", COPY, served.name, served.encoder, FILES[served.backend])
    return (
        *("python3", f"${{root}}/{START}", *places),
        *("--", *export),
        *("--", deployment.setting.engine.program, *argv),
    )


def _encoder_repository_files(served: Served, options: Mapping[str, Any]) -> dict[str, str]:
    """Both models of the repository, and the programs that fill it."""
    front, encoder = f"{FOLDER}/{served.name}", f"{FOLDER}/{served.encoder}"
    return {
        f"{front}/config.pbtxt": front_config(served, options),
        f"{front}/1/model.py": (HERE / "encoder_front.py").read_text(encoding="utf-8"),
        f"{encoder}/config.pbtxt": encoder_config(served, options),
        START: (HERE / "encoder_start.py").read_text(encoding="utf-8"),
        EXPORT: (HERE / "encoder_export.py").read_text(encoding="utf-8"),
    }


def _triton_containerfile(images: Mapping[Any, Any]) -> str:
    """An image with what the front and the export need besides Triton."""
    base = next(image.reference for choices in images.values() for image in choices)
    return f"""# Triton with what exports a checkpoint: docker build -f {CONTAINER} .
# Without an export at its start the server needs tokenizers and numpy only.
FROM {base}
RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir {PACKAGES}
"""
