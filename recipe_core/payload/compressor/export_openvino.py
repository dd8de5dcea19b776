"""OpenVINO's representation of an ONNX graph, and the compression of its weights by NNCF."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import CompressError
from .job import Options

# Modes of ``nncf.compress_weights``: symmetric, and with zero points.
MODES = {
    "int8_weight_only": ("INT8_SYM", "INT8_ASYM"),
    "int4_weight_only": ("INT4_SYM", "INT4_ASYM"),
    "mxfp4_weight_only": ("MXFP4", "MXFP4"),
    "nf4_weight_only": ("NF4", "NF4"),
}
GROUP = 128
_GROUPS = {"MXFP4": 32, "NF4": 64}


def write_openvino_model(
    graph: Path, folder: Path, technique: str | None, options: Options
) -> None:
    """Write ``model.xml`` and ``model.bin``, with compressed weights where a technique is named.

    NNCF keeps embeddings and the last matrix in int8 where all others are in four bits.

    Raises:
        CompressError: where openvino or nncf is missing.
    """
    try:
        import openvino

        with _silence_nncf():
            model: Any = openvino.Core().read_model(graph)
            if technique is not None:
                model = _compress_openvino_weights(model, technique, options)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise CompressError(f"{name} is not installed.", hint=f"pip install {name}") from None
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def _compress_openvino_weights(model: Any, technique: str, options: Options) -> Any:
    os.environ.setdefault("NNCF_CI", "1")  # or it tells its makers of each call
    import nncf

    name = MODES[technique][0 if options.symmetric else 1]
    mode = nncf.CompressWeightsMode[name]
    if name.startswith("INT8"):
        return nncf.compress_weights(model, mode=mode)
    group = options.group or _GROUPS.get(name, GROUP)
    return nncf.compress_weights(model, mode=mode, group_size=group, ratio=1.0)


@contextlib.contextmanager
def _silence_nncf() -> Iterator[None]:
    """NNCF prints tables and progress."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
