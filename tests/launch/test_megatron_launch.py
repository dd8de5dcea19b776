"""Megatron-LM's command line: parsed by its options, for models and splits of every kind."""

import argparse
import importlib.util

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.start import training_launch
from recipe_core.models.catalog import catalog_model
from recipe_core.plans.megatron_model import megatron_model
from recipe_core.plans.splits import row_estimates
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import LLAMA_8B, trainers_launch, training_table

OPTIONS = DATA / "megatron-core_v0.15.0-options.txt"
"""Each option with its type (``flag``: none) and choices, as its parser has them."""
BIG, DEEPSEEK = "meta-llama/Llama-3.1-405B", "deepseek-ai/DeepSeek-V3"
TYPES = {"int": int, "float": float, "bool": bool}
"""Of options whose words are read; the others' stay text."""
LISTED = ("moe_aux_loss_coeff", "moe_router_load_balancing_type")
"""Options that take several values, of which a bundle states one."""
SPLITS = table("training_launch", "megatron_splits")
PLAIN = {"engine": "megatron", "tp": 1, "pp": 1, "zero_stage": 1, "micro_batch": 1}


def launch(model, nodes, split, **workload):
    return trainers_launch(PLAIN | split, nodes, model, global_batch=512, **workload)


def words(started):
    argv = started.processes[0].argv
    return list(argv[argv.index("pretrain_gpt") + 1 :])


def parser():
    """Megatron-LM's options, types and choices."""
    out = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for line in OPTIONS.read_text().splitlines():
        name, kind, *choices = line.split()
        if kind == "flag":
            if name != "--help":
                out.add_argument(name, action="store_true", default=None)
            continue
        listed = {"choices": choices[0].split(",")} if choices and kind.startswith("str") else {}
        many = {"nargs": kind[-1]} if kind[-1] in "*+" else {}
        out.add_argument(name, type=TYPES.get(kind.rstrip("*+"), str), **listed, **many)
    return out


@over("model, nodes, split", SPLITS)
def test_every_word_is_an_option_of_its_type(model, nodes, split):
    started = launch(model, nodes, split)
    parsed = vars(parser().parse_args(words(started)))
    stated = {name: value for name, value in parsed.items() if value is not None}
    expected = {name: value for name, value in started.options.items() if value is not False}
    expected |= {name: [expected[name]] for name in LISTED if name in expected}
    assert stated == {k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()}
    assert megatron_model(catalog_model(model)).words.items() <= started.options.items()


@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="NOT TESTED: Megatron-LM's own parser; clone core_v0.15.0 and put it on PYTHONPATH",
)
def test_megatrons_own_parser_takes_it():
    arguments = pytest.importorskip("megatron.training.arguments")
    own = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    for model, nodes, split in SPLITS:
        parsed = own.parse_args(words(launch(model, nodes, split)))
        assert parsed.tensor_model_parallel_size == split.get("tp", 1)


def test_embedding_and_loss_are_layers_where_chunks_come_out_even_only_so():
    """Llama 3.1 405B: 126 layers and both ends are 128 chunks of 16 stages."""
    ends = {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}
    started = launch(BIG, 16, {"tp": 8, "pp": 16, "dp": 1, "virtual_stages": 8})
    assert ends <= started.options.keys()
    assert started.options["num_virtual_stages_per_pipeline_rank"] == 8
    assert "pipeline_model_parallel_layout" not in started.options
    even = launch(BIG, 2, {"tp": 8, "pp": 2, "dp": 1, "virtual_stages": 7})
    assert not ends & even.options.keys()
    listed = launch(DEEPSEEK, 2, {"pp": 4, "dp": 4, "ep": 4})
    assert listed.options["pipeline_model_parallel_layout"] == "Et*16|t*15|t*15|t*15L"
    assert not ends & listed.options.keys()


def test_selective_recomputation_is_told_by_its_modules():
    split = {"pp": 2, "dp": 8, "ep": 8, "recompute": "selective"}
    named = launch(DEEPSEEK, 2, split | {"recompute_modules": ["mla_up_proj", "layernorm"]})
    assert "--recompute-modules mla_up_proj layernorm" in " ".join(words(named))
    plain = words(launch(LLAMA_8B, 2, {"dp": 16, "recompute": "selective"}))
    assert "--recompute-modules core_attn" in " ".join(plain)


@over("model, split, field, said", table("training_launch", "megatron_refused"))
def test_what_it_cannot_be_told_is_named(model, split, field, said):
    error = refusal(launch, model, 2, split, kind=NoAnswer)
    assert (error.field, said in error.message) == (f"candidate.{field}", True)


def test_overlapped_exchanges_and_offloaded_optimizers_have_their_words():
    started = launch("Qwen/Qwen3-30B-A3B", 2, {"dp": 16, "ep": 8, "overlap_experts": True})
    assert "--overlap-moe-expert-parallel-comm" in words(started)
    assert started.processes[0].env["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    said = words(launch(LLAMA_8B, 2, {"dp": 16, "offload": "optimizer"}))
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"} <= set(said)


def test_layers_of_multi_token_prediction_lie_on_the_last_stage():
    split = {"pp": 16, "dp": 16, "ep": 16, "recompute": "full"}
    options = launch(DEEPSEEK, 32, split, mtp_layers=1, moment_dtype="bf16").options
    layout = options["pipeline_model_parallel_layout"]
    assert layout == "Et*3" + "|t*4" * 14 + "|t*2mL"
    assert (options["mtp_num_layers"], options["exp_avg_dtype"]) == (1, "bf16")
    parser().parse_args(words(launch(DEEPSEEK, 32, split, mtp_layers=1, moment_dtype="bf16")))
    alone = launch(LLAMA_8B, 2, {"dp": 16}, mtp_layers=1).options
    assert "pipeline_model_parallel_layout" not in alone


def test_graphs_and_recipes_of_8_bits_have_their_words():
    layer = launch(LLAMA_8B, 2, {"dp": 16, "cuda_graphs": "layer"})
    assert "--cuda-graph-impl transformer_engine --cuda-graph-scope full" in " ".join(words(layer))
    assert layer.processes[0].env["NCCL_GRAPH_REGISTER"] == "0"
    whole = words(launch(LLAMA_8B, 2, {"dp": 16, "cuda_graphs": "iteration"}))
    assert "--no-check-for-nan-in-loss-and-grad" in whole
    split = {"dp": 16, "precision": "fp8", "fp8_recipe": "blockwise"}
    assert "--fp8-recipe blockwise" in " ".join(words(launch(LLAMA_8B, 2, split)))


@over("precision, dtype, said, share", table("training_launch", "megatron_gradients"))
def test_gradients_are_kept_as_they_were_estimated(precision, dtype, said, share):
    """16 bits beside 8-bit products, as in NVIDIA's recipes, unless the request says otherwise."""
    candidate = PLAIN | {"tp": 2, "dp": 8, "precision": precision}
    found, row = training_table(candidate, gradient_dtype=dtype)
    estimates, i = row_estimates(found, row)
    formats = {"--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"}
    assert formats & {*words(training_launch(estimates, i))} == {*said}
    held, every = (estimates.memory.parts[name][i, 0] for name in ("gradients", "parameters"))
    assert held == share * every
