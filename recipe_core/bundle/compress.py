"""The part of a bundle that makes its checkpoint: files, and what the launcher has to know."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.base.texts import quote_command
from recipe_core.compression.scripts.work import (
    JOB,
    REQUIREMENTS,
    VERIFY,
    CompressionLaunch,
    compression_launch,
    output_folder,
)
from recipe_core.recipe.decision import Decision
from recipe_core.recipe.place import Parameters

SLURM = "compress/slurm.sh"


def checkpoint_launch(decision: Decision) -> CompressionLaunch | None:
    """Return what makes the checkpoint of a decision; None where it serves one as it is."""
    deployment = decision.deployment
    if deployment is None or deployment.compression is None:
        return None
    runtime = deployment.setting.cluster.device.runtime
    return compression_launch(deployment.compression, decision.model, runtime)


def making_files(decision: Decision) -> dict[str, str]:
    """Everything of a bundle that makes its checkpoint, a job for Slurm included; else empty."""
    launch = checkpoint_launch(decision)
    return {} if launch is None else {**launch.files, SLURM: _slurm_script(decision)}


def _slurm_script(decision: Decision) -> str:
    """The same on a node of a Slurm cluster, from the bundle's folder on a shared file system."""
    needs = decision.estimate["compression"]
    gpus = ["#SBATCH --gpus-per-node=1"] if needs["device_bytes"] else []
    memory = math.ceil(needs["host_bytes"] / (1 << 30))
    minutes = math.ceil(needs["seconds"]["high"] / 60) + 15  # and the base may have to be fetched
    lines = [
        "#!/bin/sh",
        "# Make the checkpoint on one node: sbatch compress/slurm.sh, from the bundle's folder.",
        "#SBATCH --job-name=compress",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *gpus,
        f"#SBATCH --mem={memory}G",
        f"#SBATCH --time={minutes}",
        "#SBATCH --output=run/compress-%j.log",
        "set -eu",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "exec python3 launch.py compress",
    ]
    return "".join(f"{line}\n" for line in lines)


def output_of(decision: Decision, parameters: Parameters) -> str:
    """The folder of the result: where the place says that the model is, else in ``run/``."""
    deployment = decision.deployment
    if deployment is None or deployment.compression is None:
        raise ValueError("the decision makes no checkpoint")
    folder = parameters.model
    if folder and folder.startswith("/"):
        return folder
    return output_folder(deployment.compression, decision.model)


def served_model(decision: Decision, parameters: Parameters) -> str | None:
    """Say what the engine loads of a made checkpoint; None where none is made."""
    launch = checkpoint_launch(decision)
    if launch is None:
        return None
    output = output_of(decision, parameters)
    return f"{output}/{launch.loaded}" if launch.loaded else output


def compression_document(decision: Decision, parameters: Parameters) -> dict[str, Any]:
    """``compression`` of a ``launch.json``; empty where nothing is made."""
    launch = checkpoint_launch(decision)
    if launch is None or decision.deployment is None:
        return {}
    compression = decision.deployment.compression
    assert compression is not None  # noqa: S101 - ``checkpoint_launch`` has looked
    tool, needs = compression.program, decision.estimate["compression"]
    return {
        "compression": {
            "tool": compression.tool,
            "title": f"{tool.title} {tool.version}",
            "technique": compression.technique,
            "method": compression.method,
            "module": tool.module,
            "programs": list(tool.programs),
            "install": install_line(compression.tool, tool.note),
            "argv": list(launch.argv),
            "verify": list(VERIFY),
            "env": launch.env,
            "source": decision.model.source,
            "output": output_of(decision, parameters),
            "loaded": launch.loaded or None,
            "job": JOB,
            "needs": {
                "device_bytes": needs["device_bytes"],
                "host_bytes": needs["host_bytes"],
                "disk_bytes": needs["disk_bytes"],
                "seconds": needs["seconds"]["value"],
            },
        }
    }


def install_line(tool: str, note: str | None) -> str:
    """Return the command that installs a tool in an environment where the launcher looks for it."""
    folder = f"run/tools/{tool}"
    make = quote_command(["python3", "-m", "venv", folder])
    fill = quote_command([f"{folder}/bin/pip", "install", "-r", REQUIREMENTS])
    return f"{make} && {fill}" + (f" ({note})" if note else "")
