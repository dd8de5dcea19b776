"""The input of a tool's module (``Work``), its answer, and the common part of all scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_core.accuracy.choice import Chosen
from recipe_core.base.documents import to_json
from recipe_core.base.errors import NoAnswer
from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import compress_py
from recipe_core.launch.process import LaunchFolder
from recipe_core.models.spec import ModelSpec

FOLDER = "compress"
SCRIPT = f"{FOLDER}/make.py"
# Starts ``compressor/`` on a job.
PROGRAM = "compress.py"
JOB = f"{FOLDER}/job.json"
REQUIREMENTS = f"{FOLDER}/requirements.txt"
# The file in the output's folder that llama.cpp loads.
GGUF_FILE = "model.gguf"


@dataclass(frozen=True, slots=True)
class Work:
    """A chosen way to make a smaller checkpoint, of a model, on devices of a runtime."""

    choice: Chosen
    model: ModelSpec
    runtime: str

    @property
    def ignored(self) -> list[str]:
        """Modules that stay as they are, as regular expressions of compressed-tensors.

        The head always; routers of experts, and encoders of images and sound, where there are any.
        """
        names = ["lm_head"]
        if self.model.is_moe:
            names += [r"re:.*mlp\.gate$", r"re:.*router.*", r"re:.*shared_expert_gate$"]
        if self.model.towers or self.model.left_out:
            names += [r"re:.*visual.*", r"re:.*vision.*", r"re:.*audio.*"]
        return names


@dataclass(frozen=True, slots=True)
class CompressionLaunch:
    """The making of a checkpoint: words, files of the bundle, and what has to be installed.

    ``argv``: its words; ``${root}`` is the bundle and ``${job}`` the job's file, whose ``output``
    is written. ``loaded``: the file of the output that the engine loads ("": the folder).
    """

    argv: tuple[str, ...]
    files: dict[str, str]
    requirements: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    loaded: str = ""


COMMON = '''

def read_job():
    """The job, the folder of the base and the folder to write."""
    path = Path(sys.argv[1]).resolve()
    job = json.loads(path.read_text(encoding="utf-8"))
    return job, str(path.parent / job["source"]), str(path.parent / job["output"])
'''
WINDOWS = '''

def texts(job):
    """Texts of calibration: those that the job names, else the bundle's."""
    named = job["calibration"]["text"]
    shipped = Path(__file__).resolve().parents[1] / "compressor" / "text.txt"
    path = Path(sys.argv[1]).resolve().parent / named if named else shipped
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in content.splitlines() if line.strip()]
    return [part for part in content.split("\\n\\n") if part.strip()]


def windows(job, tokenizer):
    """Token ids of the texts, one text after the other, cut into samples."""
    size, most = job["calibration"]["tokens"], job["calibration"]["samples"]
    ids = [token for text in texts(job) for token in tokenizer(text)["input_ids"]]
    rows = [ids[start : start + size] for start in range(0, len(ids), size)][:most]
    print(f"calibration: {len(rows)} of {most} samples of up to {size} tokens", flush=True)
    return rows
'''


def script(
    work: Work, constants: Mapping[str, Any], body: str, *imports: str, calibrated: bool = True
) -> str:
    """A script of a tool: what it is, imports, constants by name, shared functions, its body."""
    title = f"Makes {work.choice.technique} with {work.choice.program.title}"
    lines = [
        f'"""{title} {work.choice.program.version}: started by `launch.py compress`."""',
        "",
        "import json",
        "import sys",
        "from pathlib import Path",
        "",
        *imports,
        *([""] if imports else []),
        *(f"{name} = {value!r}" for name, value in constants.items()),
    ]
    shared = COMMON + (WINDOWS if calibrated else "")
    return "\n".join(lines) + "\n" + shared + "\n\n" + body.strip("\n") + "\n"


def script_launch(
    work: Work, text: str, *, loaded: str = "", env: Mapping[str, str] | None = None
) -> CompressionLaunch:
    return CompressionLaunch(
        argv=("python3", f"${{root}}/{SCRIPT}", "${job}"),
        files={SCRIPT: text},
        requirements=work.choice.program.requirements,
        env=dict(env or {}),
        loaded=loaded,
    )


MODULES = LaunchFolder(
    "recipe_core.compression.scripts", "compress", "(work: Work) -> CompressionLaunch"
)
# Tools that write it know models that go on with texts; the others export encoders, too.
DECODERS = "safetensors"
_FOLDER = PACKAGE / "payload" / "compressor"
_SHIPPED = ("*.py", "*.txt")
# Holds a result against its base.
VERIFY = ("python3", f"${{root}}/{PROGRAM}", "${job}")


def compression_launch(choice: Chosen, model: ModelSpec, runtime: str) -> CompressionLaunch:
    """Return what makes a checkpoint, with every file that it needs in the bundle.

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
    verify = choice.request.verify
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
    paths = [path for pattern in _SHIPPED for path in sorted(_FOLDER.glob(pattern))]
    return {
        f"{_FOLDER.name}/{path.relative_to(_FOLDER).as_posix()}": path.read_text(encoding="utf-8")
        for path in paths
    }
