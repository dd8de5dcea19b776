"""OpenVINO on the processor."""

from __future__ import annotations

from pathlib import Path

from . import Array
from .cached_graph import CachedGraph


class Model(CachedGraph):
    """``model.xml`` of a folder; products in fp32, so that the weights are all that differs."""

    name = "OpenVINO"

    def __init__(self, folder: Path) -> None:
        import openvino

        super().__init__(folder)
        self.version = openvino.__version__.partition("-")[0]
        self._compiled = openvino.Core().compile_model(
            folder / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )

    def call(self, inputs: dict[str, Array]) -> list[Array]:
        """See `CachedGraph`."""
        out = self._compiled(inputs)
        return [out[i] for i in range(1 + self.count)]
