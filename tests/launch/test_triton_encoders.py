"""Encoders in Triton: the repository, its front, the export, and results beside torch's."""

import importlib.util
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks.batch_window import small_bert
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.launch.serving import encoder_export, encoder_start
from recipe_core.recipe.decision import decide
from recipe_core.request.schema import PlanRequest
from tests.fixtures.rows import over
from tests.fixtures.targets import after

# exporters of torch, ONNX and OpenVINO warn of each other's deprecations
pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ("input_ids", "attention_mask")
ENGINES = ("triton-onnxruntime", "triton-openvino", "triton-tensorrt")


def launched(engine, model="BAAI/bge-m3", options=None, **candidate):
    device = "cpu" if engine == "triton-openvino" else "l4"
    value = {
        "model": model,
        "hardware": {"device": device, "per_node": 1},
        "workload": {"input_tokens": 128, "mode": "open", "request_rate": 0.2},
        "options": {"engine_options": options or {}},
        "candidate": {"engine": engine, "tp": 1, "pp": 1, "dp": 1, **candidate},
    }
    return decide(PlanRequest.parse(value)).started()


def configs(started):
    """The front's file and the encoder's."""
    return [text for path, text in started.files.items() if path.endswith("config.pbtxt")]


def loaded(path):
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def schema():
    """Triton's own message, from its client; without importing gRPC."""
    found = importlib.util.find_spec("tritonclient")
    if found is None:
        pytest.skip("tritonclient is not installed")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    return loaded(path).ModelConfig


@over("engine", ENGINES)
def test_triton_reads_the_files_by_its_own_schema(engine, schema):
    from google.protobuf import text_format

    started = launched(engine, batch_window_ms=2.5, instances=2)
    front, encoder = (text_format.Parse(text, schema()) for text in configs(started))
    assert front.dynamic_batching.max_queue_delay_microseconds == 2500
    assert front.max_batch_size == started.options["max_batch_size"] > 1
    assert [group.count for group in (*front.instance_group, *encoder.instance_group)] == [2, 2]
    assert f"triton-{encoder.backend}" == engine
    assert [list(place.dims) for place in encoder.input] == [[-1, -1]] * 2
    assert encoder.name == front.parameters["encoder"].string_value
    # batches form in the front only: OpenVINO's backend would pad to the largest
    assert (front.backend, encoder.HasField("dynamic_batching")) == ("python", False)
    assert encoder.max_batch_size == 0
    at_once, _ = configs(launched(engine))
    assert "dynamic_batching {\n  max_queue_delay_microseconds: 0\n}" in at_once


def test_the_models_own_fields_are_written_and_the_servers_are_flags():
    # a batch of the longest texts fits into the tokens of a step
    started = launched("triton-onnxruntime", max_batched_tokens=4096, max_num_seqs=64)
    tokens = started.options["max_tokens"]
    assert started.options["max_batch_size"] == 4096 // tokens
    assert after(started.processes[0].argv, "--max-tokens") == str(tokens)
    options = {"execution_accelerator": "tensorrt", "preferred_batch_size": [4, 8]}
    options |= {"max_queue_size": 256, "http_thread_count": 16}
    started = launched("triton-onnxruntime", options=options)
    front, encoder = configs(started)
    assert "preferred_batch_size: [4, 8]" in front
    assert "max_queue_size: 256" in front
    assert 'name: "tensorrt"' in encoder
    assert 'value: "input_ids:1x2,attention_mask:1x2"' in encoder
    words = started.processes[0].argv
    assert after(words, "--http-thread-count") == "16"
    assert "--preferred-batch-size" not in words


def test_what_a_backend_cannot_do_is_refused_and_a_reranker_is_asked_with_a_query():
    with pytest.raises(NoAnswer, match="no execution provider"):
        launched("triton-tensorrt", options={"execution_accelerator": "tensorrt"})
    with pytest.raises(NoAnswer, match=r"no kernels|supports no"):
        launched("triton-onnxruntime", weight_dtype="int8")  # on a GPU
    with pytest.raises(InputError, match="set by the recipe"):
        launched("triton-tensorrt", options={"metrics_port": 9})
    started = launched("triton-onnxruntime", "BAAI/bge-reranker-v2-m3")
    front, _ = configs(started)
    assert front.index('name: "query"') < front.index('name: "text"') < front.index('"score"')
    assert set(started.api_body) == {"query"}
    assert started.api_path == "/v2/models/bge-reranker-v2-m3/infer"


# Done on this machine; models of torch and their exports at night


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small BERT of random weights with a tokenizer of whole words."""
    pytest.importorskip("torch")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("bert")
    small_bert(folder, hidden=64, layers=2)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(996))]
    numbers = {word: n for n, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def module(checkpoint):
    return encoder_export.load_encoder(str(checkpoint), "embed", "fp32")


@pytest.fixture(scope="module")
def onnx_file(checkpoint, tmp_path_factory):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("onnx")
    words = ["--model", str(checkpoint), "--task", "embed", "--backend", "onnxruntime"]
    options = encoder_export.encoder_export_parser().parse_args([*words, "--output", str(folder)])
    return encoder_export.export_encoder(options)


def texts(rows, length, seed=0):
    """Random tokens, each row but the first cut somewhere."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, 1000, (rows, length))
    mask = np.ones_like(ids)
    for row in range(1, rows):
        mask[row, draw.integers(2, length) :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def least_cosine(a, b):
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return float(((a * b).sum(axis=-1) / norms).min())


def by_torch(module, given):
    import torch

    with torch.no_grad():
        return module(*(torch.from_numpy(given[name]) for name in NAMES)).numpy()


def by_onnx(path):
    import onnxruntime

    made = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda given: made.run(None, dict(given))[0]


def agreement(module, run):
    """The least cosine over batches and lengths other than those of the trace."""
    shapes = ((1, 2), (3, 17), (8, 96))
    batches = [texts(*shape, seed=number) for number, shape in enumerate(shapes)]
    return min(least_cosine(run(given), by_torch(module, given)) for given in batches)


@pytest.mark.nightly
def test_onnx_runtime_agrees_with_torch_for_every_shape(module, onnx_file, tmp_path):
    assert agreement(module, by_onnx(onnx_file)) > 0.99999
    encoder_export.to_int8(onnx_file, tmp_path / "int8.onnx")
    assert agreement(module, by_onnx(tmp_path / "int8.onnx")) > 0.98
    assert (tmp_path / "int8.onnx").stat().st_size < 0.5 * onnx_file.stat().st_size


@pytest.mark.nightly
def test_openvino_agrees_with_torch_for_every_shape(module, onnx_file, tmp_path):
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    for precision, least in (("fp32", 0.999), ("int8", 0.98)):
        path = tmp_path / f"{precision}.xml"
        encoder_export.to_openvino(onnx_file, precision, path)
        made = openvino.Core().compile_model(str(path), "CPU")
        assert agreement(module, lambda given, made=made: made(dict(given))[0]) > least


@pytest.mark.parametrize("kind", ["cls", "mean", "last"])
def test_pooling_is_that_of_sentence_transformers(checkpoint, kind, tmp_path):
    import torch

    folder = shutil.copytree(checkpoint, tmp_path / kind)
    kinds = [{"type": "sentence_transformers.models.Pooling"}, {"type": "x.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling").mkdir()
    word = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}[kind]
    stated = json.dumps({f"pooling_mode_{word}": True})
    (folder / "1_Pooling" / "config.json").write_text(stated)
    made, given = encoder_export.load_encoder(str(folder), "embed", "fp32"), texts(3, 9)
    ids, mask = (torch.from_numpy(given[name]) for name in NAMES)
    with torch.no_grad():
        hidden = made.model(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    for row, count in enumerate(given["attention_mask"].sum(axis=1)):
        tokens = hidden[row, :count]
        vector = {"cls": tokens[0], "mean": tokens.mean(axis=0), "last": tokens[-1]}[kind]
        expected = vector / np.linalg.norm(vector)
        assert by_torch(made, given)[row] == pytest.approx(expected, abs=1e-5)


class Tensor:
    def __init__(self, name, values):
        self.name, self.values = name, values

    def as_numpy(self):
        return self.values

    def is_cpu(self):
        return True


@pytest.mark.nightly
def test_the_front_sends_one_padded_batch_and_gives_each_request_its_own(
    checkpoint, onnx_file, monkeypatch, tmp_path
):
    """With ONNX Runtime in the place of Triton's encoder."""
    run, calls = by_onnx(onnx_file), []

    def inference_request(model_name, requested_output_names, inputs):
        given = {tensor.name: tensor.values for tensor in inputs}

        def answer():
            calls.append(given["input_ids"].shape)
            outputs = [Tensor("", run(given))]
            return types.SimpleNamespace(has_error=lambda: False, outputs=outputs)

        return types.SimpleNamespace(exec=answer)

    backend = types.SimpleNamespace(
        InferenceRequest=inference_request,
        Tensor=Tensor,
        InferenceResponse=lambda output_tensors: output_tensors,
        get_input_tensor_by_name=lambda request, name: request[name],
        get_output_tensor_by_name=lambda answer, name: answer.outputs[0],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    started = launched("triton-onnxruntime")
    (path,) = (path for path in started.files if path.endswith("model.py"))
    file = tmp_path / "1" / "model.py"
    file.parent.mkdir()
    file.write_text(started.files[path])
    (tmp_path / "1" / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    made = loaded(file).TritonPythonModel()
    stated = {"encoder": "e", "inputs": ",".join(NAMES), "max_tokens": "16"}
    stated |= {"result": "text_vector", "output": "embedding"}
    parameters = {name: {"string_value": value} for name, value in stated.items()}
    config = json.dumps({"parameters": parameters, "input": [{"name": "text"}]})
    place = {"model_repository": str(tmp_path), "model_version": "1"}
    made.initialize({"model_config": config, **place})
    sent = (b"w1 w2 w3", b"w4", b"w5 " * 40)
    requests = [{"text": Tensor("text", np.array([[text]], dtype=object))} for text in sent]
    together = made.execute(requests)
    assert calls == [(3, 16)]  # the longest, cut
    assert [int(out[1].values.item()) for out in together] == [5, 3, 16]
    for request, out in zip(requests, together, strict=True):
        (alone,) = made.execute([request])
        assert out[0].values.shape == (1, 64)
        assert least_cosine(out[0].values, alone[0].values) > 0.9999


def test_a_server_exports_once_and_then_starts(tmp_path):
    source, target = tmp_path / "engine", tmp_path / "run" / "repository"
    for folder in ("m/1", "m-encoder"):
        (source / folder).mkdir(parents=True)
    (source / "m" / "config.pbtxt").write_text("x")
    program = (
        "import sys; from pathlib import Path; out = Path(sys.argv[-1]); "
        "(out / 'model.onnx').write_text('made'); (out / 'tokenizer.json').write_text('{}')"
    )
    places = [str(source), str(target), "m", "m-encoder", "model.onnx"]
    encoder_start.prepare_repository(places, [sys.executable, "-c", program])
    assert (target / "m-encoder" / "1" / "model.onnx").read_text() == "made"
    assert (target / "m" / "1" / "tokenizer.json").read_text() == "{}"
    fails = [sys.executable, "-c", "raise SystemExit(1)"]
    encoder_start.prepare_repository(places, fails)  # not run again
    (target / "m-encoder" / "1" / "model.onnx").unlink()
    with pytest.raises(SystemExit, match="could not be made here"):
        encoder_start.prepare_repository(places, fails)


def test_the_export_says_what_it_lacks(tmp_path, monkeypatch):
    words = ["--model", str(tmp_path), "--task", "embed", "--backend", "tensorrt"]
    command = [sys.executable, "-S", encoder_export.__file__, *words]
    command += ["--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "encoder_export:" in done.stderr
    assert "Traceback" not in done.stderr
    # an engine is built for the shapes that batches may have
    monkeypatch.setattr("shutil.which", lambda program: program)
    words = encoder_export.trtexec_words(Path("a.onnx"), Path("a.plan"), NAMES, 32, 512)
    assert "--maxShapes=input_ids:32x512,attention_mask:32x512" in words
    assert "--minShapes=input_ids:1x2,attention_mask:1x2" in words
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(encoder_export.ExportError, match="trtexec"):
        encoder_export.trtexec_words(Path("a.onnx"), Path("a.plan"), NAMES, 1, 8)
