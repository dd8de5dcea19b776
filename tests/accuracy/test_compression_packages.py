"""Rows of support against the packages of engines, libraries and compilers that run here."""

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipe_core.accuracy.lookup import support_of, support_rows
from recipe_core.accuracy.technique import techniques
from recipe_core.engines.options import option_table
from recipe_core.hardware.cluster import device_names
from tests.fixtures.rows import table

NIGHTLY = pytest.mark.nightly
EDGE = ("orin", "thor", "apple", "rdna3", "rdna4", "intel-gpu", "intel-npu", "x86", "arm")


def folder(package):
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent


def source(package, path, kind):
    """The statements of a kind of a module, which is not imported (that takes long)."""
    tree = ast.parse((folder(package) / path).read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, kind)]


def test_every_gguf_format_is_a_type_of_file():
    gguf = pytest.importorskip("gguf")
    types = {kind.name.removeprefix("MOSTLY_").casefold() for kind in gguf.LlamaFileType}
    assert {n.removeprefix("gguf_") for n in techniques() if n.startswith("gguf_")} <= types
    # rows of llama.cpp name types of ggml
    types = {kind.name for kind in gguf.GGMLQuantizationType}
    weights = [
        row for row in support_rows(engine="llama-cpp") if not row.technique.startswith("kv_")
    ]
    named = {row.variant for row in weights if row.runs and row.variant}
    assert named
    assert named <= types
    # types of caches are those of its parser
    choices = option_table("llama-cpp", "b11206").options["--cache-type-k"].choices
    cache = [row for row in support_rows(engine="llama-cpp") if row.technique.startswith("kv_")]
    assert {row.variant for row in cache if row.runs} <= set(choices)
    assert {row.technique for row in cache if row.runs} >= {"kv_int8", "kv_int4"}
    assert "fp8" not in " ".join(choices)
    assert support_of("kv_fp8", "llama-cpp", "cpu").verdict == "refused"


def test_methods_of_transformers_are_those_that_it_loads_and_its_quantizers_say_the_words():
    assigned = source("transformers", "quantizers/auto.py", ast.Assign)
    name = "AUTO_QUANTIZATION_CONFIG_MAPPING"
    [mapping] = [node.value for node in assigned if ast.unparse(node.targets[0]) == name]
    known = {key.value for key in mapping.keys if isinstance(key, ast.Constant)}
    running = [row for row in support_rows(engine="transformers") if row.runs and row.variant]
    named = {row.variant for row in running if not row.technique.startswith("kv_")}
    named -= {"nf4", "int8"}  # of bitsandbytes
    assert len(named) >= 8
    assert named <= known
    # adjacent string literals are one, and a quotation leaves out what is … or a placeholder
    files = (folder("transformers") / "quantizers").glob("quantizer_*.py")
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    said = [row for row in support_rows(engine="transformers") if row.url.endswith("quantizers")]
    quoted = {row.words for row in said if row.words}
    assert len(quoted) >= 12
    pieces = [piece.strip() for words in quoted for piece in re.split(r"…|\{[^}]*\}", words)]
    assert [piece for piece in pieces if len(piece) > 8 and piece not in text] == []


REFUSING = table("compression_packages", "refusing")


@NIGHTLY
@pytest.mark.parametrize("method", REFUSING)
def test_quantizers_refuse_this_processor_in_the_words_of_the_row(method, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("an accelerator is here")
    module = pytest.importorskip(f"transformers.quantizers.quantizer_{method}")
    for name in vars(module):
        if name.startswith("is_") and name.endswith("_available") and "torch" not in name:
            monkeypatch.setattr(module, name, lambda *_: True)
    own = [value for value in vars(module).values() if isinstance(value, type)]
    quantizer = next(value for value in own if value.__module__ == module.__name__)
    asked = SimpleNamespace(quantization_config=SimpleNamespace(), pre_quantized=False)
    with pytest.raises((RuntimeError, ImportError, NotImplementedError)) as raised:
        quantizer.validate_environment(asked, device_map=None)
    here = [
        row for row in support_rows(engine="transformers", hardware="x86") if row.variant == method
    ]
    assert not any(row.runs for row in here)
    refused = [row for row in here if row.verdict == "refused"]
    words = {row.words for row in refused if row.technique == REFUSING[method]}
    assert words == {str(raised.value)}


def test_formats_of_openvino_are_modes_of_nncf_and_its_plugins_are_of_intel_alone():
    modes_of = table("compression_packages", "modes")
    classes = source("nncf", "parameters.py", ast.ClassDef)
    [body] = [node.body for node in classes if node.name == "CompressWeightsMode"]
    modes = {ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)}
    assert set(modes_of.values()) <= modes
    running = {row.technique for row in support_rows(engine="openvino") if row.runs}
    weights = {name for name in running if name.endswith("weight_only")}
    assert weights
    assert weights <= set(modes_of)
    plugins = {file.name for file in (folder("openvino") / "libs").glob("*openvino_*_plugin*")}
    named = {name.split("openvino_")[1].split("_plugin")[0] for name in plugins}
    processors = {name for name in named if name.endswith(("cpu", "gpu", "npu"))}
    assert processors <= {"intel_cpu", "intel_gpu", "intel_npu", "arm_cpu"}
    refused = [row for row in support_rows(engine="openvino") if row.verdict == "refused"]
    assert {row.hardware for row in refused} >= {"nvidia", "amd"}
    assert all("openvino_intel_gpu_plugin" in row.note for row in refused)


@NIGHTLY
@pytest.mark.parametrize("mode", ["nf4", "mxfp4", "nvfp4", "codebook"])
def test_nncf_refuses_for_onnx_what_rows_say(mode):
    nncf = pytest.importorskip("nncf")
    helper = pytest.importorskip("onnx.helper")
    value = helper.make_tensor_value_info("x", 1, [1, 8])
    model = helper.make_model(helper.make_graph([], "none", [value], [value]))
    said = [row for row in support_rows(engine="onnxruntime") if row.variant == f"nncf {mode}"]
    with pytest.raises(nncf.ParameterNotSupportedError) as raised:
        nncf.compress_weights(model, mode=nncf.CompressWeightsMode(mode))
    assert {row.words for row in said} == {str(raised.value)}


def test_onnx_runtime_multiplies_packed_weights_of_these_bits():
    """One MatMulNBits of 32 by 32, in blocks of 32, computed by the CPU provider."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    np = pytest.importorskip("numpy")
    helper, kinds = onnx.helper, onnx.TensorProto

    def session(bits):
        """Of a model of one product: a row of 32 floats times packed weights."""
        packed = np.zeros((32, 1, 32 * bits // 8), dtype=np.uint8)
        sizes = {"K": 32, "N": 32, "bits": bits, "block_size": 32}
        ends = ["A", "B", "scales"], ["Y"]
        node = helper.make_node("MatMulNBits", *ends, domain="com.microsoft", **sizes)
        scales = helper.make_tensor("scales", kinds.FLOAT, [32], [1.0] * 32)
        tensors = [onnx.numpy_helper.from_array(packed, "B"), scales]
        row_in, row_out = (helper.make_tensor_value_info(e, kinds.FLOAT, [1, 32]) for e in "AY")
        graph = helper.make_graph([node], "product", [row_in], [row_out], tensors)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        providers = ["CPUExecutionProvider"]
        return runtime.InferenceSession(model.SerializeToString(), providers=providers)

    for bits in (2, 4, 8):
        [out] = session(bits).run(None, {"A": np.ones((1, 32), dtype=np.float32)})
        # Weights of zero stand for minus half the range, with a scale of one.
        assert out.tolist() == [[-32.0 * 2 ** (bits - 1)] * 32]
        answer = support_of(f"int{bits}_weight_only", "onnxruntime", "x86")
        assert answer.verdict in ("weight-only kernel", "unknown")
    with pytest.raises(Exception, match=r"nbits_|bits"):
        session(3)
    assert not support_of("int3_weight_only", "onnxruntime", "x86").runs


def test_every_edge_family_has_a_device_and_rows_of_several_runners():
    for hardware in EDGE:
        said = {row.engine for row in support_rows(hardware=hardware)} - {"any"}
        assert len(said) >= 3, hardware
    shipped = {support_of("int4_weight_only", "vllm", name).hardware for name in device_names()}
    assert set(EDGE) <= shipped
