"""What quantised checkpoints store, in the words of each quantiser."""

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_model
from recipe_core.model.config.modules import match
from recipe_core.model.config.read import read_config
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

ALL = {"attention", "linear"}


def quantized(tiny_config, raw):
    return read_config({**tiny_config, "quantization_config": raw}, "x")


@over("raw, dtype, block, value_bytes", table("model_quantization", "quantisers"))
def test_each_quantiser_is_understood(tiny_config, raw, dtype, block, value_bytes):
    found = quantized(tiny_config, raw).quantization
    assert (found.dtype, found.roles) == (dtype, ALL)
    assert (found.block, found.value_bytes) == (block, value_bytes)


QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
    "kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}},
}


def test_modules_left_out_change_roles_or_single_layers(tiny_config):
    left_out = ["lm_head", "re:.*self_attn.*", "model.layers.0.mlp"]
    model = quantized(tiny_config, {"quant_method": "fp8", "modules_to_not_convert": left_out})
    assert model.quantization.roles == {"linear"}
    assert [layer.unquantized for layer in model.layers] == [("mlp",), (), (), ()]
    roles = {item.name: item.role for item in model.layers[0].tensors(model.hidden)}
    assert roles["mlp"] == "unquantized"
    nothing = quantized(tiny_config, {"quant_method": "fp8", "ignore": ["*"]})
    assert nothing.quantization is None
    assert any("excludes every matrix" in note for note in nothing.notes)
    # the format of the cache is read
    fp8, scheme = {"quant_algo": "FP8"}, {"num_bits": 8, "type": "float"}
    for raw in (fp8 | {"kv_cache_quant_algo": "FP8"}, fp8 | {"kv_cache_scheme": scheme}, QUARK):
        assert quantized(tiny_config, raw).kv_dtype == "fp8"


def test_mixed_precision_is_told_by_role(tiny_config):
    layers = {f"model.layers.{i}.mlp.up_proj": {"quant_algo": "NVFP4"} for i in range(4)}
    names = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qkvo"]
    layers |= {name: {"quant_algo": "FP8"} for name in names}
    model = quantized(tiny_config, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert model.quantization.dtype == "nvfp4"
    assert model.quantization.others == (("attention", "fp8"),)
    assert model.quantization.dtype_of("attention", "bf16") == "fp8"
    assert model.quantization.bytes_of("norm", "bf16") == 2
    assert any("Mixed precision" in note for note in model.notes)


def test_the_kinds_of_published_checkpoints():
    first, second = (catalog_model(f"nvidia/DeepSeek-R1-0528-{x}") for x in ("FP4", "NVFP4-v2"))
    assert first.quantization.roles == {"linear", "experts", "shared"}
    assert "attention" in second.quantization.roles
    assert "attention.o" not in second.layers[5].unquantized
    assert "attention.q_b" in second.layers[5].unquantized
    # Meta's 405B keeps attention and both ends
    model = catalog_model("meta-llama/Llama-3.1-405B-Instruct-FP8")
    assert model.quantization.roles == {"linear"}
    assert [i for i, layer in enumerate(model.layers) if layer.unquantized] == [0, 125]


def test_foreign_regexes_are_never_run_and_simple_ones_become_globs(tiny_config):
    for pattern in ("re:(a+)+$", "re:((.*)*)*x", "re:[", "re:(?=a)"):
        model = quantized(tiny_config, {"quant_method": "fp8", "ignore": [pattern]})
        assert any("not understood" in note for note in model.notes)
    alternatives = r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"
    found = match([alternatives, r"re:model\.layers\.\d+\.self_attn\.o_proj$"])
    assert found.everywhere == {"mlp", "attention.o"}
    assert match(["gate", "mlp.gate", "model.norm"]).everywhere == set()


@over(
    "name, experts, gigabytes",
    [
        # 864.8 GB stored, 13.9 of them the multi-token-prediction layer
        ("deepseek-ai/DeepSeek-V4-Pro", "mxfp4", 850.6),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4", 898.9),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "fp8-block", 1576.3),
    ],
)
def test_experts_may_be_in_4_bit_among_fp8(name, experts, gigabytes):
    model = catalog_model(name)
    roles = ("experts", "attention", "shared", "unquantized", "router")
    stored = [model.quantization.dtype_of(role, "bf16") for role in roles]
    assert stored == [experts, "fp8-block", "fp8-block", "bf16", "bf16"]
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
    assert model.quantization.dtype == "nvfp4"
    assert model.quantization.others == (("attention", "fp8-block"),)
    assert all(layer.unquantized == () for layer in model.layers)
    # an expert format that is not known is an error
    config = tiny_config | {"expert_dtype": "fp2"}
    error = refusal(quantized, config, {"quant_method": "fp8"}, kind=ModelError)
    assert "'fp2' is not modelled" in str(error)
