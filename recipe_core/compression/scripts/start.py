"""How the checkpoint of a deployment is made: the tool's script, the job, and the program beside.

Each tool has a module here, found by its name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.accuracy.choice import Chosen
from recipe_core.base.documents import to_json
from recipe_core.base.errors import NoAnswer
from recipe_core.base.resources import PACKAGE
from recipe_core.compression.scripts.work import JOB, PROGRAM, REQUIREMENTS, CompressionLaunch, Work
from recipe_core.launch.entry import compress_py
from recipe_core.launch.modules import LaunchFolder
from recipe_core.models.spec import ModelSpec

MODULES = LaunchFolder(
    "recipe_core.compression.scripts", "compress", "(work: Work) -> CompressionLaunch"
)
# Tools that write it know models that go on with texts; the others export encoders, too.
DECODERS = "safetensors"
_FOLDER = PACKAGE / "payload" / "compressor"
_SHIPPED = ("*.py", "*.txt")
# Techniques whose job says how much goes; of the others the name says it.
_SHARES = ("sparse_unstructured", "layer_pruning", "low_rank")
# Holds a result against its base.
VERIFY = ("python3", f"${{root}}/{PROGRAM}", "${job}")


def compression_launch(choice: Chosen, model: ModelSpec, runtime: str) -> CompressionLaunch:
    """What makes a checkpoint, with every file that it needs in the bundle.

    Raises:
        NoAnswer: for a model that the tool does not know.
    """
    tool = choice.program
    if not model.generates and tool.format == DECODERS:
        raise NoAnswer(
            f"{tool.title} makes checkpoints of models that go on with texts; {model.name} does "
            f"not (task {model.task}).",
            field="options.compression.tool",
            hint="Use optimum-onnx or optimum-openvino, whose engines serve such models.",
        )
    launch: CompressionLaunch = MODULES.function(choice.tool)(Work(choice, model, runtime))
    files = {
        **launch.files,
        JOB: to_json(job_document(choice, model)),
        REQUIREMENTS: "".join(f"{line}\n" for line in launch.requirements),
        PROGRAM: compress_py(),
        **_compressor_files(),
    }
    return replace(launch, files=files)


def job_document(choice: Chosen, model: ModelSpec) -> dict[str, Any]:
    """``job.json`` as the room ``compressor`` reads it; its folders are filled by the launcher."""
    verify, kind = choice.request.verify, choice.kind
    return {
        "schema_version": 1,
        "source": model.source,
        "output": output_folder(choice, model),
        "technique": choice.technique,
        "tool": choice.tool,
        "format": choice.format,
        "method": choice.method.lower(),
        "options": {
            "group": choice.group if choice.group > 1 else None,
            "removed": kind.removed if choice.technique in _SHARES else None,
        },
        "calibration": {
            "text": choice.text,
            "samples": choice.samples or 1,
            "tokens": choice.tokens,
        },
        "verify": {
            "text": verify.text,
            "tokens": verify.tokens,
            "prompts": verify.prompts,
            "new_tokens": verify.new_tokens,
            "least_retained": verify.least_retained,
        },
    }


def output_folder(choice: Chosen, model: ModelSpec) -> str:
    return f"./run/compressed/{choice.output(model.name)}"


def _compressor_files() -> dict[str, str]:
    """The room ``compressor`` as files of a bundle."""
    paths = [path for pattern in _SHIPPED for path in sorted(_FOLDER.rglob(pattern))]
    return {
        f"{_FOLDER.name}/{path.relative_to(_FOLDER).as_posix()}": path.read_text(encoding="utf-8")
        for path in paths
    }
