"""Optimum ONNX: ``optimum-cli export onnx``, then dynamic quantisation by ONNX Runtime."""

from __future__ import annotations

from recipe_core.compression.scripts.optimum_openvino import TASKS
from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

_BODY = """
def main():
    job, source, output = read_job()
    program = shutil.which("optimum-cli", path=str(Path(sys.executable).parent)) or "optimum-cli"
    wide = Path(output).with_name(Path(output).name + "-wide")
    words = [program, "export", "onnx", "--model", source, "--task", TASK, str(wide)]
    subprocess.run(words, check=True)
    words = [program, "onnxruntime", "quantize", "--onnx_model", str(wide), f"--{FORMAT}"]
    subprocess.run([*words, "--per_channel", "--output", output], check=True)
    for path in wide.iterdir():  # tokenizer and configuration
        if path.suffix in (".json", ".jinja", ".model", ".txt"):
            shutil.copy2(path, output) if not Path(output, path.name).exists() else None
    shutil.rmtree(wide)


if __name__ == "__main__":
    main()
"""


def compress_optimum_onnx(work: Work) -> CompressionLaunch:
    """A script that leaves ONNX files with 8-bit weights and activations."""
    constants = {"TASK": TASKS[work.model.task], "FORMAT": work.choice.scheme}
    imports = ("import shutil", "import subprocess")
    return script_launch(work, script(work, constants, _BODY, *imports, calibrated=False))
