"""Rows of libraries and compilers against the packages that run here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipe_core.compression.knowledge import rows, support_of
from recipe_core.hardware.cluster import device_names

EDGE = ("orin", "thor", "apple", "rdna3", "rdna4", "intel-gpu", "intel-npu", "x86", "arm")


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent


def _joined(text: str) -> str:
    """Source text with adjacent string literals as one, as Python reads them."""
    return re.sub(r'"\s*\n\s*f?"', "", text)


def _pieces(words: str) -> list[str]:
    """A quotation without what it leaves out (…) and without its placeholders."""
    parts = re.split(r"…|\{[^}]*\}", words)
    return [part.strip() for part in parts if len(part.strip()) > 8]


def test_what_quantizers_of_transformers_say_is_in_their_source():
    files = (_folder("transformers") / "quantizers").glob("quantizer_*.py")
    source = _joined("\n".join(file.read_text(encoding="utf-8") for file in files))
    said = [row for row in rows(engine="transformers") if row.url.endswith("quantizers")]
    quoted = {row.words for row in said if row.words}
    assert len(quoted) >= 12
    missing = [text for text in quoted for piece in _pieces(text) if piece not in source]
    assert missing == []


REFUSING = {
    "eetq": "int8_weight_only",
    "fbgemm_fp8": "fp8_w8a8",
    "fp_quant": "nvfp4_w4a4",
    "higgs": "lut_int4",
    "nvfp4": "nvfp4_w4a4",
    "spqr": "spqr",
    "vptq": "codebook_vq_2bit",
}
"""Quantizers of transformers that refuse a processor, with the technique of their rows."""


@pytest.mark.nightly
@pytest.mark.parametrize("method", REFUSING)
def test_quantizers_refuse_this_processor_in_the_words_of_the_row(method, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("an accelerator is here")
    module: Any = pytest.importorskip(f"transformers.quantizers.quantizer_{method}")
    for name in vars(module):
        if name.startswith("is_") and name.endswith("_available") and "torch" not in name:
            monkeypatch.setattr(module, name, lambda *_: True)
    own = [value for value in vars(module).values() if isinstance(value, type)]
    quantizer = next(value for value in own if value.__module__ == module.__name__)
    asked = SimpleNamespace(quantization_config=SimpleNamespace(), pre_quantized=False)
    with pytest.raises((RuntimeError, ImportError, NotImplementedError)) as raised:
        quantizer.validate_environment(asked, device_map=None)
    where = {"technique": REFUSING[method], "engine": "transformers", "hardware": "x86"}
    refused = [row for row in rows(**where) if row.verdict == "refused"]
    said = {row.words for row in refused if row.variant == method}
    assert said == {str(raised.value)}


def test_openvino_brings_plugins_of_intel_alone():
    plugins = {file.name for file in (_folder("openvino") / "libs").glob("*openvino_*_plugin*")}
    named = {name.split("openvino_")[1].split("_plugin")[0] for name in plugins}
    processors = {name for name in named if name.endswith(("cpu", "gpu", "npu"))}
    assert processors <= {"intel_cpu", "intel_gpu", "intel_npu", "arm_cpu"}
    refused = [row for row in rows(engine="openvino") if row.verdict == "refused"]
    assert {row.hardware for row in refused} >= {"nvidia", "amd"}
    assert all("openvino_intel_gpu_plugin" in row.note for row in refused)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["nf4", "mxfp4", "nvfp4", "codebook"])
def test_nncf_refuses_for_onnx_what_rows_say(mode):
    nncf = pytest.importorskip("nncf")
    helper: Any = pytest.importorskip("onnx.helper")
    value = helper.make_tensor_value_info("x", 1, [1, 8])
    model = helper.make_model(helper.make_graph([], "none", [value], [value]))
    said = [row for row in rows(engine="onnxruntime") if row.variant == f"nncf {mode}"]
    with pytest.raises(nncf.ParameterNotSupportedError) as raised:
        nncf.compress_weights(model, mode=nncf.CompressWeightsMode(mode))
    assert said
    assert {row.words for row in said} == {str(raised.value)}


def test_every_edge_family_has_a_device_and_rows_of_several_runners():
    for hardware in EDGE:
        said = {row.engine for row in rows(hardware=hardware)} - {"any"}
        assert len(said) >= 3, hardware
    shipped = {support_of("int4_weight_only", "vllm", name).hardware for name in device_names()}
    assert set(EDGE) <= shipped
