"""A real model, small: rounded, pruned and exported, and run by the runtimes that read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from recipe_core.compression.technique import technique
from recipe_core.compressor.main import main
from recipe_core.model.dtypes import BYTES_PER_VALUE
from tests.compressor.conftest import GROUP, VERIFY, needs_tools

pytestmark = [pytest.mark.engine, needs_tools]

INT4 = {"options": {"group": GROUP}}


def parameters(folder: Path) -> tuple[int, int]:
    """Weights of matrices that are rounded, and of all else."""
    from recipe_core.compressor.models import load_model, matrices

    model = load_model(folder)
    inner = sum(each.weight.numel() for _, each in matrices(model, ("lm_head",)))
    return inner, model.num_parameters() - inner


def test_the_base_knows_its_text(base):
    assert base.figures.perplexity < 1.2
    assert base.figures.decode_tokens_per_s > 1
    assert base.figures.resident_bytes > 0


@pytest.mark.parametrize("name", ["int8_w8a8", "int8_weight_only", "fp8_w8a8"])
def test_eight_bits_lose_next_to_nothing(made, name):
    _, result = made(name)
    assert result.perplexity_retained > 0.97
    assert result.same_top > 0.97


def test_fewer_bits_lose_more(made):
    lost = [
        1 - made(name, **parts)[1].perplexity_retained
        for name, parts in (
            ("int8_weight_only", {}),
            ("int4_weight_only", INT4),
            ("int2_weight_only", INT4),
        )
    ]
    assert abs(lost[0]) < lost[1] < lost[2]
    assert lost[1] < 0.05
    assert lost[2] > 0.02


@pytest.mark.parametrize(
    ("name", "parts", "value_bytes"),
    [
        ("int8_w8a8", {}, BYTES_PER_VALUE["int8"]),
        ("fp8_w8a8", {}, BYTES_PER_VALUE["fp8"]),
        ("int4_weight_only", INT4, technique("int4_weight_only").weight_bits / 8 + 2 / GROUP),
    ],
)
def test_files_are_as_large_as_predicted(made, demo_model, name, parts, value_bytes):
    inner, rest = parameters(demo_model)
    _, result = made(name, **parts)
    predicted = inner * value_bytes + rest * BYTES_PER_VALUE["bf16"]
    assert result.result.bytes == pytest.approx(predicted, rel=0.04)


def test_wanda_keeps_no_less_than_magnitude(made):
    wanda = made("sparse_2_4", method="wanda")[1]
    magnitude = made("sparse_2_4", method="magnitude")[1]
    assert wanda.perplexity_retained > magnitude.perplexity_retained - 0.02  # 0.78 and 0.77
    assert wanda.perplexity_retained > 0.5
    assert wanda.result.bytes == pytest.approx(wanda.base.bytes, rel=0.01)  # zeros are stored


def test_two_of_four_are_zero(made):
    from safetensors import safe_open

    folder, _ = made("sparse_2_4", method="wanda")
    with safe_open(folder / "model.safetensors", "pt") as file:
        weight = file.get_tensor("model.layers.0.mlp.up_proj.weight")
    assert bool(((weight.reshape(-1, 4) == 0).sum(1) >= 2).all())


def test_a_removed_layer_is_gone_and_the_rest_still_runs(made, demo_model):
    folder, result = made("layer_pruning", options={"removed": 0.25})
    layers = [
        json.loads((each / "config.json").read_text())["num_hidden_layers"]
        for each in (demo_model, folder)
    ]
    assert layers[1] == layers[0] - 1
    assert result.result.bytes < 0.9 * result.base.bytes
    assert 0 < result.perplexity_retained < 1


def test_less_rank_loses_more(made):
    kept = [
        made("low_rank", options={"removed": share})[1].perplexity_retained for share in (0.2, 0.6)
    ]
    assert 1 > kept[0] > kept[1]


@pytest.mark.parametrize(
    ("written", "runtime"),
    [("onnx", "ONNX Runtime"), ("openvino", "OpenVINO"), ("gguf", "llama.cpp")],
)
def test_an_export_says_what_torch_says(made, demo_model, base_tokens, written, runtime):
    from recipe_core.compressor.runners import run

    folder, result = made("none", written)
    window = base_tokens[:64]
    difference = run(folder).logits(window) - run(demo_model).logits(window)
    assert result.result.runtime == runtime
    assert np.abs(difference).max() < (0.5 if written == "gguf" else 1e-3)  # gguf: bf16 products
    assert result.same_top > 0.99
    assert result.agreement > 0.9


@pytest.mark.parametrize(
    ("name", "written", "least"),
    [
        ("int8_w8a8", "onnx", 0.9),
        ("int4_weight_only", "onnx", 0.85),
        ("int8_weight_only", "openvino", 0.97),
        ("int4_weight_only", "openvino", 0.85),
        ("gguf_q8_0", None, 0.97),
        ("gguf_q4_k_m", None, 0.9),
    ],
)
def test_runtimes_run_what_their_tools_rounded(made, name, written, least):
    parts = INT4 if name == "int4_weight_only" else {}
    _, result = made(name, written, **parts)
    whole = made("none", written or "gguf")[1]
    assert result.perplexity_retained > least
    assert result.result.bytes < 0.75 * whole.result.bytes


def test_types_of_llama_cpp_are_as_wide_as_the_table_says(made, demo_model):
    import gguf

    folder, _ = made("gguf_q8_0")
    tensors = gguf.GGUFReader(folder / "model.gguf").tensors
    matrices = [each for each in tensors if len(each.shape) == 2]
    bits = 8 * sum(each.n_bytes for each in matrices) / sum(each.n_elements for each in matrices)
    assert bits == pytest.approx(technique("gguf_q8_0").weight_bits, rel=0.01)


def job_file(folder: Path, demo_model: Path, **parts: object) -> Path:
    """A job whose texts are the bundled one, which the model has never seen."""
    values = {
        "schema_version": 1,
        "source": str(demo_model),
        "output": "small",
        "technique": "int8_weight_only",
        "verify": VERIFY,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(values | parts))
    return path


def test_the_program_writes_figures_and_fails_where_too_much_is_lost(tmp_path, demo_model, capsys):
    job = job_file(tmp_path, demo_model, verify=VERIFY | {"least_retained": 0.9})
    assert main([str(job)]) == 0
    figures = json.loads((tmp_path / "run" / "compression.json").read_text())
    assert figures["retained"]["perplexity"] > 0.9
    assert figures["bytes"] < figures["base_bytes"]
    assert "retained" in capsys.readouterr().out
    job_file(tmp_path, demo_model, verify=VERIFY | {"least_retained": 0.9999999})
    assert main([str(job), "--verify-only"]) == 3
    assert "less than verify.least_retained" in capsys.readouterr().err


def test_what_fails_leaves_the_output_as_it_was(tmp_path, demo_model, capsys):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "kept.txt").write_text("kept")
    job = job_file(tmp_path, demo_model, technique="int4_weight_only", verify=None)
    assert main([str(job)]) == 2  # groups of 128 do not fill 352 inputs
    assert "has 352 inputs" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["small"]
    assert (tmp_path / "small" / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"technique": "gguf_iq2_xs"}, "gguf_iq2_xs cannot be written as gguf"),
        ({"technique": "fp8_w8a8", "format": "onnx"}, "fp8_w8a8 cannot be written as onnx"),
        ({"method": "gptq"}, "method is 'gptq'"),
        ({"source": "nowhere"}, "holds no config.json"),
        ({"options": {"group": 64}}, "has no groups"),
        ({"options": {"removed": 0.3}}, "int8_weight_only removes 0.0"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, demo_model, capsys, parts, message):
    job = job_file(tmp_path, demo_model, **parts)
    assert main([str(job), "--no-verify"]) == 2
    assert message in capsys.readouterr().err
