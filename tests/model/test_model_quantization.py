"""What quantised checkpoints store, in the words of each quantiser."""

from __future__ import annotations

import time

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_model
from recipe_core.model.config.modules import match
from recipe_core.model.config.read import read_config

ALL = {"attention", "linear"}
CT_WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
}


def quantized(tiny_config, raw):
    return read_config({**tiny_config, "quantization_config": raw}, "x")


@pytest.mark.parametrize(
    ("raw", "dtype", "block", "value_bytes"),
    [
        ({"quant_method": "fp8"}, "fp8", None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", 128, None),
        ({"quant_method": "fbgemm_fp8"}, "fp8", None, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", None, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4", None, 0.5 + 2.5 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", None, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", None, None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", None, 0.5625),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", None, None),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
            "nvfp4",
            None,
            None,
        ),
        ({"quantization": {"quant_algo": "FP8_PB_WO"}}, "fp8-block", 128, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"targets": ["Linear"], "weights": CT_WEIGHTS}},
            },
            "int4",
            None,
            0.5625,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
                },
            },
            "fp8",
            None,
            None,
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}},
            "fp8",
            None,
            None,
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
            },
            "mxfp4",
            None,
            None,
        ),
    ],
)
def test_each_quantiser_is_understood(tiny_config, raw, dtype, block, value_bytes):
    found = quantized(tiny_config, raw).quantization
    assert found is not None
    assert (found.dtype, found.roles, found.block, found.value_bytes) == (
        dtype,
        ALL,
        block,
        value_bytes,
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        {"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
            "kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}},
        },
    ],
)
def test_the_cache_format_is_read(tiny_config, raw):
    assert quantized(tiny_config, raw).kv_dtype == "fp8"


def test_modules_left_out_change_roles_or_single_layers(tiny_config):
    model = quantized(
        tiny_config,
        {
            "quant_method": "fp8",
            "modules_to_not_convert": ["lm_head", "re:.*self_attn.*", "model.layers.0.mlp"],
        },
    )
    assert model.quantization is not None
    assert model.quantization.roles == {"linear"}
    assert [layer.unquantized for layer in model.layers] == [("mlp",), (), (), ()]
    roles = {item.name: item.role for item in model.layers[0].tensors(model.hidden)}
    assert roles["mlp"] == "unquantized"


def test_metas_405b_keeps_attention_and_both_ends():
    model = catalog_model("meta-llama/Llama-3.1-405B-Instruct-FP8")
    assert model.quantization is not None
    assert model.quantization.roles == {"linear"}
    assert [i for i, layer in enumerate(model.layers) if layer.unquantized] == [0, 125]


def test_mixed_precision_is_told_by_role(tiny_config):
    layers = {f"model.layers.{i}.mlp.up_proj": {"quant_algo": "NVFP4"} for i in range(4)}
    layers |= {
        f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"}
        for i in range(4)
        for p in "qkvo"
    }
    model = quantized(tiny_config, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert model.quantization is not None
    assert (model.quantization.dtype, model.quantization.others) == (
        "nvfp4",
        (("attention", "fp8"),),
    )
    assert model.quantization.dtype_of("attention", "bf16") == "fp8"
    assert model.quantization.bytes_of("norm", "bf16") == 2
    assert any("Mixed precision" in note for note in model.notes)


def test_everything_left_out_is_no_quantisation(tiny_config):
    model = quantized(tiny_config, {"quant_method": "fp8", "ignore": ["*"]})
    assert model.quantization is None
    assert any("excludes every matrix" in note for note in model.notes)


def test_the_kinds_of_deepseek_fp4_checkpoints():
    first, second = (catalog_model(f"nvidia/DeepSeek-R1-0528-{x}") for x in ("FP4", "NVFP4-v2"))
    assert first.quantization is not None
    assert first.quantization.roles == {"linear", "experts", "shared"}
    assert second.quantization is not None
    assert "attention" in second.quantization.roles
    assert "attention.o" not in second.layers[5].unquantized
    assert "attention.q_b" in second.layers[5].unquantized


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:((.*)*)*x", "re:[", "re:(?=a)"])
def test_foreign_regexes_are_never_run(tiny_config, pattern):
    start = time.perf_counter()
    model = quantized(tiny_config, {"quant_method": "fp8", "ignore": [pattern]})
    assert time.perf_counter() - start < 1
    assert any("not understood" in note for note in model.notes)


def test_alternatives_and_digits_become_globs():
    found = match(
        [r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", r"re:model\.layers\.\d+\.self_attn\.o_proj$"]
    )
    assert found.everywhere == {"mlp", "attention.o"}
    assert match(["gate", "mlp.gate", "model.norm"]).everywhere == set()


@pytest.mark.parametrize(
    ("name", "experts", "gigabytes"),
    [
        (
            "deepseek-ai/DeepSeek-V4-Pro",
            "mxfp4",
            850.6,
        ),  # 864.8 stored, 13.9 of them the multi-token-prediction layer
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4", 898.9),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "fp8-block", 1576.3),
    ],
)
def test_experts_may_be_in_4_bit_among_fp8(name, experts, gigabytes):
    model = catalog_model(name)
    stored = model.quantization
    roles = ("experts", "attention", "shared", "unquantized", "router")
    assert [stored.dtype_of(role, "bf16") for role in roles] == [
        experts,
        "fp8-block",
        "fp8-block",
        "bf16",
        "bf16",
    ]
    assert model.counted_bytes / 1e9 == pytest.approx(gigabytes, abs=0.1)
    assert model.kv_dtype == "fp8"


def test_what_was_not_quantised_again_stays_fp8(tiny_config):
    again = {
        "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}},
        "ignore": ["*.attn.*"],
        "moe_quant_algo": "NVFP4",
    }
    config = tiny_config | {"num_experts": 4, "num_experts_per_tok": 2, "expert_dtype": "fp4"}
    model = quantized(config, again | {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert (model.quantization.dtype, model.quantization.others) == (
        "nvfp4",
        (("attention", "fp8-block"),),
    )
    assert all(layer.unquantized == () for layer in model.layers)


def test_an_expert_format_that_is_not_known_is_an_error(tiny_config):
    with pytest.raises(ModelError, match="'fp2' is not modelled"):
        quantized(tiny_config | {"expert_dtype": "fp2"}, {"quant_method": "fp8"})
