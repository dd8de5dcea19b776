"""The bundle's own program: ``compressor/``, started by ``compress.py``."""

from __future__ import annotations

from recipe_core.compression.scripts.work import PROGRAM, CompressionLaunch, Work


def compress_embedded(work: Work) -> CompressionLaunch:
    return CompressionLaunch(
        argv=("python3", f"${{root}}/{PROGRAM}", "${job}"),
        files={},
        requirements=work.choice.program.requirements,
    )
