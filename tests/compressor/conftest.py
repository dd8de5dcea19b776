"""The demo's model, what it says, and its graph: made once for all tests of the compressor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT

TEXT = ROOT / "scripts" / "demo_corpus.txt"
TOOLS = (
    *("torch", "transformers", "compressed_tensors", "gguf", "nncf", "onnx", "onnxruntime"),
    *("onnxscript", "openvino", "xllamacpp"),
)
needs_tools = needs("compression", *TOOLS, extra="torch,compress")
VERIFY = {"tokens": 512, "window": 128, "prompts": 2, "prompt_tokens": 16}
VERIFY |= {"new_tokens": 12, "runs": 1}
GROUP = 32
"""Divides the 352 inputs of the demo model's last matrices."""


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's corpus as its model was trained on it: an end after each paragraph."""
    path = tmp_path_factory.mktemp("text") / "stream.txt"
    path.write_text(TEXT.read_text(encoding="utf-8").strip().replace("\n\n", "</s>"))
    return path


@pytest.fixture(scope="session")
def base_tokens(demo_model: Path, stream: Path) -> list[int]:
    """The text that models are held against."""
    from recipe_core.compressor.models import load_tokenizer
    from recipe_core.compressor.windows import text_tokens

    return text_tokens(load_tokenizer(demo_model), stream)[: VERIFY["tokens"]]


@pytest.fixture(scope="session")
def base(demo_model: Path, base_tokens: list[int]) -> Any:
    """What the base says, by torch."""
    from recipe_core.compressor.job import Verify
    from recipe_core.compressor.verify import observe

    return observe(demo_model, base_tokens, Verify(**VERIFY))


@pytest.fixture(scope="session")
def made(
    demo_model: Path,
    base: Any,
    base_tokens: list[int],
    stream: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Any]:
    """Compress by a technique once, and hold it against the base: its folder and the result."""
    from recipe_core.compressor import export_onnx
    from recipe_core.compressor.compress import compress
    from recipe_core.compressor.job import Verify, read_job
    from recipe_core.compressor.verify import compare, observe

    kept: dict[str, Any] = {}
    root = tmp_path_factory.mktemp("compressed")
    export, graph = export_onnx.export, root / "graph"

    def export_once(model: Any, folder: Path) -> Path:
        """The base's graph: a trace takes far longer than all that is done with it."""
        if not graph.exists():
            graph.mkdir()
            export(model, graph)
        shutil.copytree(graph, folder, dirs_exist_ok=True)
        return folder / "model.onnx"

    def make(technique: str, written: str | None = None, **parts: Any) -> Any:
        key = f"{technique}-{written}-{parts}"
        if key not in kept:
            values = {
                "schema_version": 1,
                "source": str(demo_model),
                "output": str(root / str(len(kept))),
                "technique": technique,
                "format": written,
                "calibration": {"text": str(stream), "samples": 8, "tokens": 128},
            }
            job = read_job(values | parts)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export_onnx, "export", export_once)
                compress(job)
            measured = observe(job.output_folder, base_tokens, Verify(**VERIFY))
            kept[key] = (job.output_folder, compare(base, measured, len(base_tokens)))
        return kept[key]

    return make
