"""Optimum Intel: ``optimum-cli export openvino`` with a weight format."""

from __future__ import annotations

from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

_BODY = """
def main():
    job, source, output = read_job()
    program = shutil.which("optimum-cli", path=str(Path(sys.executable).parent)) or "optimum-cli"
    words = [program, "export", "openvino", "--model", source, "--task", TASK]
    subprocess.run([*words, "--weight-format", FORMAT, *MORE, output], check=True)


if __name__ == "__main__":
    main()
"""
# What a model is exported for.
TASKS = {
    "generate": "text-generation-with-past",
    "embed": "feature-extraction",
    "score": "text-classification",
}
_GROUPS = {"int4": ("--group-size", "128", "--group-size-fallback", "adjust", "--ratio", "1.0")}


def compress_optimum_openvino(work: Work) -> CompressionLaunch:
    """A script that leaves a model of OpenVINO with its tokenizer."""
    constants = {
        "TASK": TASKS[work.model.task],
        "FORMAT": work.choice.scheme,
        "MORE": list(_GROUPS.get(work.choice.scheme, ())),
    }
    imports = ("import shutil", "import subprocess")
    return script_launch(work, script(work, constants, _BODY, *imports, calibrated=False))
