"""ONNX Runtime on the processor."""

from __future__ import annotations

from pathlib import Path

from . import Array
from .cached_graph import CachedGraph


class Model(CachedGraph):
    """``model.onnx`` of a folder."""

    name = "ONNX Runtime"

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        super().__init__(folder)
        self.version = onnxruntime.__version__
        options = onnxruntime.SessionOptions()
        # threads that spin between calls take the processor from whoever else runs
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"]
        )

    def call(self, inputs: dict[str, Array]) -> list[Array]:
        return list(self._session.run(None, inputs))
