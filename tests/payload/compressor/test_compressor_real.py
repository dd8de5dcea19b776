"""A real model, small: rounded, pruned and exported, and run by the runtimes that read it."""

import json
import shutil

import numpy as np
import pytest

from recipe_core.accuracy.technique import technique
from recipe_core.models.tensors import BYTES_PER_VALUE
from recipe_core.payload.compressor.main import main
from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import over, table

CHECKPOINTS = ("torch", "transformers", "compressed_tensors")
TOOLS = ("gguf", "nncf", "onnx", "onnxruntime", "onnxscript", "openvino", "xllamacpp")
VERIFY = {"tokens": 512, "window": 128, "prompts": 2, "prompt_tokens": 16}
VERIFY |= {"new_tokens": 12, "runs": 1}
GROUP = 32
"""Divides the 352 inputs of the demo model's last matrices."""
INT4 = {"options": {"group": GROUP}}
NEEDED = needs("compression", *CHECKPOINTS, extra="torch,compress")
EXPORTS = needs("exports of compressed models", *TOOLS, extra="torch,compress")
pytestmark = [pytest.mark.engine, NEEDED]


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """The demo's corpus as its model was trained on it: an end after each paragraph."""
    path = tmp_path_factory.mktemp("text") / "stream.txt"
    text = (ROOT / "scripts" / "demo_corpus.txt").read_text(encoding="utf-8")
    path.write_text(text.strip().replace("\n\n", "</s>"))
    return path


@pytest.fixture(scope="module")
def base_tokens(demo_model, stream):
    from recipe_core.payload.compressor.models import load_tokenizer
    from recipe_core.payload.compressor.verify import text_tokens

    return text_tokens(load_tokenizer(demo_model), stream)[: VERIFY["tokens"]]


@pytest.fixture(scope="module")
def base(demo_model, base_tokens):
    from recipe_core.payload.compressor.job import Verify
    from recipe_core.payload.compressor.verify import observe

    return observe(demo_model, base_tokens, Verify(**VERIFY))


@pytest.fixture(scope="module")
def made(demo_model, base, base_tokens, stream, tmp_path_factory):
    """Compress by a technique once, and hold it against the base: its folder and the result."""
    from recipe_core.payload.compressor import export_onnx
    from recipe_core.payload.compressor.compress import write_compressed_model
    from recipe_core.payload.compressor.job import Verify, read_job
    from recipe_core.payload.compressor.verify import compare_with_base, observe

    kept, root = {}, tmp_path_factory.mktemp("compressed")
    export, graph = export_onnx.write_onnx_graph, root / "graph"

    def export_once(model, folder):
        """The base's graph: a trace takes far longer than all that is done with it."""
        if not graph.exists():
            graph.mkdir()
            export(model, graph)
        shutil.copytree(graph, folder, dirs_exist_ok=True)
        return folder / "model.onnx"

    def make(technique, written=None, **parts):
        key = f"{technique}-{written}-{parts}"
        if key not in kept:
            values = {"schema_version": 1, "source": str(demo_model), "technique": technique}
            values |= {"format": written, "output": str(root / str(len(kept)))}
            values["calibration"] = {"text": str(stream), "samples": 8, "tokens": 128}
            job = read_job(values | parts)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export_onnx, "write_onnx_graph", export_once)
                write_compressed_model(job)
            measured = observe(job.output_folder, base_tokens, Verify(**VERIFY))
            kept[key] = (job.output_folder, compare_with_base(base, measured, len(base_tokens)))
        return kept[key]

    return make


def retained(made, name, written=None, **parts):
    return made(name, written, **parts)[1].perplexity_retained


def test_bits_cost_what_they_should(base, made, demo_model):
    """Eight bits lose next to nothing, fewer lose more; files are as large as predicted."""
    from recipe_core.payload.compressor.models import load_decoder, matrices

    trained = json.loads((demo_model / "demo_model.json").read_text())
    assert base.figures.perplexity == pytest.approx(np.exp(trained["loss_after"]), rel=0.1)
    assert base.figures.decode_tokens_per_s > 1
    assert base.figures.resident_bytes > 0
    model = load_decoder(demo_model)
    inner = sum(each.weight.numel() for _, each in matrices(model, ("lm_head",)))
    rest = (model.num_parameters() - inner) * BYTES_PER_VALUE["bf16"]
    four_bits = technique("int4_weight_only").weight_bits / 8 + 2 / GROUP
    for name, value_bytes, least, parts in (
        ("int8_w8a8", BYTES_PER_VALUE["int8"], 0.97, {}),
        ("int8_weight_only", None, 0.97, {}),
        ("fp8_w8a8", BYTES_PER_VALUE["fp8"], 0.97, {}),
        ("int4_weight_only", four_bits, 0.95, INT4),
    ):
        _, result = made(name, **parts)
        assert result.perplexity_retained > least, name
        assert result.same_top > 0.97 or name == "int4_weight_only", name
        if value_bytes:
            predicted = inner * value_bytes + rest
            assert result.result.bytes == pytest.approx(predicted, rel=0.04), name
    eight = 1 - retained(made, "int8_weight_only")
    four, two = (1 - retained(made, f"int{bits}_weight_only", **INT4) for bits in (4, 2))
    assert abs(eight) < four < two
    assert two > 0.02


def test_two_of_four_are_zero_and_wanda_keeps_no_less_than_magnitude(made):
    from safetensors import safe_open

    folder, wanda = made("sparse_2_4", method="wanda")
    # 0.78 and 0.77
    assert wanda.perplexity_retained > retained(made, "sparse_2_4", method="magnitude") - 0.02
    assert wanda.perplexity_retained > 0.5
    assert wanda.result.bytes == pytest.approx(wanda.base.bytes, rel=0.01)  # zeros are stored
    with safe_open(folder / "model.safetensors", "pt") as file:
        weight = file.get_tensor("model.layers.0.mlp.up_proj.weight")
    assert bool(((weight.reshape(-1, 4) == 0).sum(1) >= 2).all())


def test_a_removed_layer_is_gone_and_less_rank_loses_more(made, demo_model):
    folder, result = made("layer_pruning", options={"removed": 0.25})
    before, after = (
        json.loads((model / "config.json").read_text())["num_hidden_layers"]
        for model in (demo_model, folder)
    )
    assert after == before - 1
    assert result.result.bytes < 0.9 * result.base.bytes
    assert 0 < result.perplexity_retained < 1
    kept = [retained(made, "low_rank", options={"removed": share}) for share in (0.2, 0.6)]
    assert 1 > kept[0] > kept[1]


RUNTIMES = {"onnx": "ONNX Runtime", "openvino": "OpenVINO", "gguf": "llama.cpp"}


@EXPORTS
@pytest.mark.nightly
@pytest.mark.parametrize("written", RUNTIMES)
def test_an_export_says_what_torch_says(made, demo_model, base_tokens, written):
    from recipe_core.payload.compressor.runners import load_runner

    folder, result = made("none", written)
    window = base_tokens[:64]
    difference = load_runner(folder).logits(window) - load_runner(demo_model).logits(window)
    assert result.result.runtime == RUNTIMES[written]
    assert np.abs(difference).max() < (0.5 if written == "gguf" else 1e-3)  # gguf: bf16 products
    assert result.same_top > 0.99
    assert result.agreement > 0.9


@EXPORTS
@pytest.mark.nightly
@over("name, written, least", table("compressor", "rounded"))
def test_runtimes_run_what_their_tools_rounded(made, name, written, least):
    _, result = made(name, written, **(INT4 if name == "int4_weight_only" else {}))
    whole = made("none", written or "gguf")[1]
    assert result.perplexity_retained > least
    assert result.result.bytes < 0.75 * whole.result.bytes


@EXPORTS
@pytest.mark.nightly
def test_types_of_llama_cpp_are_as_wide_as_the_table_says(made):
    import gguf

    folder, _ = made("gguf_q8_0")
    tensors = gguf.GGUFReader(folder / "model.gguf").tensors
    matrices = [each for each in tensors if len(each.shape) == 2]
    bits = 8 * sum(each.n_bytes for each in matrices) / sum(each.n_elements for each in matrices)
    assert bits == pytest.approx(technique("gguf_q8_0").weight_bits, rel=0.01)


def job_file(folder, demo_model, **parts):
    """A job whose texts are the bundled one, which the model has never seen."""
    values = {"schema_version": 1, "source": str(demo_model), "output": "small"}
    values |= {"technique": "int8_weight_only", "verify": VERIFY}
    path = folder / "job.json"
    path.write_text(json.dumps(values | parts))
    return str(path)


def test_the_program_writes_figures_and_fails_where_too_much_is_lost(
    tmp_path, demo_model, stream, capsys
):
    job = job_file(tmp_path, demo_model, verify=VERIFY | {"least_retained": 0.9})
    assert main([job]) == 0
    figures = json.loads((tmp_path / "run" / "compression.json").read_text())
    assert figures["retained"]["perplexity"] > 0.9
    assert figures["bytes"] < figures["base_bytes"]
    assert "retained" in capsys.readouterr().out
    verify = VERIFY | {"text": str(stream), "least_retained": 0.99}
    two_bits = {"technique": "int2_weight_only", "output": "smaller"} | INT4
    job_file(tmp_path, demo_model, verify=verify, **two_bits)
    assert main([job, "--no-verify"]) == 0
    assert main([job, "--verify-only"]) == 3
    assert "less than verify.least_retained" in capsys.readouterr().err


def test_what_cannot_be_done_is_said_and_leaves_the_output_as_it_was(tmp_path, demo_model, capsys):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "kept.txt").write_text("kept")
    for message, parts in table("compressor", "refused"):
        assert main([job_file(tmp_path, demo_model, **parts), "--no-verify"]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["small"]
    assert (tmp_path / "small" / "kept.txt").read_text() == "kept"
