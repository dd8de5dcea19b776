"""Rows of support against the engines' own packages, where these are installed here."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from recipe_core.compression.knowledge import rows, support_of
from recipe_core.compression.technique import techniques
from recipe_core.engines.options import option_table
from tests.fixtures.rows import table

MODES = table("compression_parsers", "modes")
"""Formats of weights by NNCF's names, which compresses for OpenVINO."""


def _source(package: str, path: str) -> ast.Module:
    """A module of an installed package, parsed without importing it (which takes long)."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(found.origin).parent / path).read_text(encoding="utf-8"))


def test_every_gguf_format_is_a_type_of_file():
    gguf = pytest.importorskip("gguf")
    types = {kind.name.removeprefix("MOSTLY_").casefold() for kind in gguf.LlamaFileType}
    named = {name for name in techniques() if name.startswith("gguf_")}
    assert {name.removeprefix("gguf_") for name in named} <= types
    # rows of llama.cpp name types of ggml
    types = {kind.name for kind in gguf.GGMLQuantizationType}
    weights = [row for row in rows(engine="llama-cpp") if not row.technique.startswith("kv_")]
    named = {row.variant for row in weights if row.runs and row.variant}
    assert named
    assert named <= types
    # types of caches are those of its parser
    choices = option_table("llama-cpp", "b11206").options["--cache-type-k"].choices
    cache = [row for row in rows(engine="llama-cpp") if row.technique.startswith("kv_")]
    assert {row.variant for row in cache if row.runs} <= set(choices)
    assert {row.technique for row in cache if row.runs} >= {"kv_int8", "kv_int4"}
    assert "fp8" not in " ".join(choices)
    assert support_of("kv_fp8", "llama-cpp", "cpu").verdict == "refused"


def test_methods_of_transformers_are_those_that_it_loads():
    tree = _source("transformers", "quantizers/auto.py")
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    name = "AUTO_QUANTIZATION_CONFIG_MAPPING"
    [mapping] = [node.value for node in assigned if ast.unparse(node.targets[0]) == name]
    known = {key.value for key in mapping.keys if isinstance(key, ast.Constant)}
    running = [row for row in rows(engine="transformers") if row.runs and row.variant]
    named = {row.variant for row in running if not row.technique.startswith("kv_")}
    named -= {"nf4", "int8"}  # of bitsandbytes
    assert len(named) >= 8
    assert named <= known


REFUSED_ON_A_PROCESSOR = {
    "fbgemm_fp8": "FbgemmFp8Config",
    "higgs": "HiggsConfig",
    "spqr": "SpQRConfig",
    "fp_quant": "FPQuantConfig",
}


@pytest.mark.nightly
@pytest.mark.parametrize("method", REFUSED_ON_A_PROCESSOR)
def test_transformers_refuses_on_a_processor_what_rows_say(method):
    """Its own check of the environment, without a GPU."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    transformers = pytest.importorskip("transformers")
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    config: Any = getattr(transformers, REFUSED_ON_A_PROCESSOR[method])()
    checker: Any = AUTO_QUANTIZER_MAPPING[method]
    with pytest.raises((ImportError, NotImplementedError, RuntimeError), match=r"GPU"):
        checker(config, pre_quantized=True).validate_environment(device_map="cpu")
    said = [row for row in rows(engine="transformers", hardware="x86") if row.variant == method]
    assert not any(row.runs for row in said)


def test_formats_of_openvino_are_modes_of_nncf():
    tree = _source("nncf", "parameters.py")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    [body] = [node.body for node in classes if node.name == "CompressWeightsMode"]
    modes = {ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)}
    assert set(MODES.values()) <= modes
    running = {row.technique for row in rows(engine="openvino") if row.runs}
    weights = {name for name in running if name.endswith("weight_only")}
    assert weights
    assert weights <= set(MODES)


def test_onnx_runtime_multiplies_packed_weights_of_these_bits():
    """One MatMulNBits of 32 by 32, in blocks of 32, computed by the CPU provider."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    np = pytest.importorskip("numpy")

    def session(bits):
        packed = np.zeros((32, 1, 32 * bits // 8), dtype=np.uint8)
        model = _packed_product(onnx, packed, bits).SerializeToString()
        return runtime.InferenceSession(model, providers=["CPUExecutionProvider"])

    for bits in (2, 4, 8):
        [out] = session(bits).run(None, {"A": np.ones((1, 32), dtype=np.float32)})
        # Weights of zero stand for minus half the range, with a scale of one.
        assert out.tolist() == [[-32.0 * 2 ** (bits - 1)] * 32]
        answer = support_of(f"int{bits}_weight_only", "onnxruntime", "x86")
        assert answer.verdict in ("weight-only kernel", "unknown")
    with pytest.raises(Exception, match=r"nbits_|bits"):
        session(3)
    assert not support_of("int3_weight_only", "onnxruntime", "x86").runs


def _packed_product(onnx: Any, packed: Any, bits: int) -> Any:
    """A model of one MatMulNBits: a row of 32 floats times packed weights."""
    helper, kinds = onnx.helper, onnx.TensorProto
    sizes = {"K": 32, "N": 32, "bits": bits, "block_size": 32}
    ends = ["A", "B", "scales"], ["Y"]
    node = helper.make_node("MatMulNBits", *ends, domain="com.microsoft", **sizes)
    weights = onnx.numpy_helper.from_array(packed, "B")
    scales = helper.make_tensor("scales", kinds.FLOAT, [32], [1.0] * 32)
    row_in, row_out = (helper.make_tensor_value_info(end, kinds.FLOAT, [1, 32]) for end in "AY")
    graph = helper.make_graph([node], "product", [row_in], [row_out], [weights, scales])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
