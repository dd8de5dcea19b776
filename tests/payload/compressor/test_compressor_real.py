"""A real model, small: rounded, and run by the runtimes that read it."""

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from recipe_core.accuracy.choice import tool
from recipe_core.accuracy.technique import technique
from recipe_core.models.tensors import BYTES_PER_VALUE
from recipe_core.payload.compressor.__main__ import main
from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import table

CHECKPOINTS = ("torch", "transformers", "compressed_tensors")
VERIFY = {"tokens": 512, "window": 128, "prompts": 2, "prompt_tokens": 16}
VERIFY |= {"new_tokens": 12, "runs": 1}
GROUP = 32
"""Divides the 352 inputs of the demo model's last matrices."""
INT4 = {"options": {"group": GROUP}}
NEEDED = needs("compression", *CHECKPOINTS, extra="torch,compress")
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
def made(demo_model, base, base_tokens, tmp_path_factory):
    """Compress by a technique once, and hold it against the base: its folder and the result."""
    from recipe_core.payload.compressor.compress import write_compressed_model
    from recipe_core.payload.compressor.job import Verify, read_job
    from recipe_core.payload.compressor.verify import compare_with_base, observe

    kept, root = {}, tmp_path_factory.mktemp("compressed")

    def make(technique, **parts):
        key = f"{technique}-{parts}"
        if key not in kept:
            values = {"schema_version": 1, "source": str(demo_model), "technique": technique}
            job = read_job(values | {"output": str(root / str(len(kept)))} | parts)
            write_compressed_model(job)
            measured = observe(job.output_folder, base_tokens, Verify(**VERIFY))
            kept[key] = (job.output_folder, compare_with_base(base, measured, len(base_tokens)))
        return kept[key]

    return make


def retained(made, name, **parts):
    return made(name, **parts)[1].perplexity_retained


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


def test_every_technique_that_the_tool_is_said_to_make_is_made(made):
    from recipe_core.payload.compressor.compress import METHODS, SCHEMES

    for name, ways in tool("embedded").makes.items():
        assert [*ways] == [method.upper() for method in METHODS]
        assert SCHEMES[name] == ways["RTN"].scheme
        options = {"options": {"group": GROUP}} if technique(name).group == "128" else {}
        assert retained(made, name, **options) > 0.5, name


def test_graphs_are_run_behind_the_interface_of_transformers(demo_model, base_tokens, monkeypatch):
    """Optimum's classes, whose place torch's own model takes here: cache and mask are handed on."""
    from recipe_core.payload.compressor import runners

    folder = demo_model.with_name("graph")
    folder.mkdir(exist_ok=True)
    (folder / "openvino_model.xml").touch()
    loaded = SimpleNamespace(from_pretrained=lambda _, **__: runners.load_decoder(demo_model))
    module = SimpleNamespace(OVModelForCausalLM=loaded)
    monkeypatch.setattr(runners, "import_module", lambda _: module)
    monkeypatch.setattr(runners, "version", lambda _: "1")
    graph, window = runners.load_runner(folder), base_tokens[:32]
    assert (graph.name, graph.version) == ("OpenVINO", "1")
    whole = graph.logits(window)
    graph.start(window[:-1])
    assert np.abs(graph.step(window[-1]) - whole[-1]).max() < 0.1  # bf16 products
    plain = runners.load_runner(demo_model).logits(window)
    assert np.abs(plain - whole).max() < 0.5


@pytest.mark.nightly
@needs("GGUF files", "xllamacpp", extra="torch,compress")
def test_llama_cpp_says_what_torch_says(demo_model, base_tokens, tmp_path):
    from recipe_core.payload.compressor.runners import load_runner

    program = shutil.which("convert_hf_to_gguf.py")
    if program is None:
        pytest.skip("NOT TESTED: GGUF files, because llama.cpp's converter is not on the PATH")
    words = ["--outfile", str(tmp_path / "model.gguf"), "--outtype", "bf16"]
    subprocess.run([sys.executable, program, str(demo_model), *words], check=True)
    window = base_tokens[:64]
    difference = load_runner(tmp_path).logits(window) - load_runner(demo_model).logits(window)
    assert np.abs(difference).max() < 0.5  # bf16 products


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
