"""What quantised checkpoints store, in the words of each quantiser and by their names."""

import statistics

import pytest

from recipe_core.accuracy.technique import checkpoint_making, technique
from recipe_core.base.errors import ModelError
from recipe_core.doors import answers
from recipe_core.models import catalog, hub
from recipe_core.models.catalog import catalog_entry, catalog_ids, catalog_model, load_model_spec
from recipe_core.models.config.formats import GGUF_BITS, match_modules
from recipe_core.models.config.read import read_model_config
from recipe_core.models.spec import LinearAttention
from recipe_core.models.supplements import name_meanings, naming_conventions
from tests.conftest import request_values
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


def quantized(tiny_config, raw):
    return read_model_config({**tiny_config, "quantization_config": raw}, "x")


@over("raw, dtype, block, value_bytes", table("model_quantization", "quantisers"))
def test_each_quantiser_is_understood(tiny_config, raw, dtype, block, value_bytes):
    found = quantized(tiny_config, raw).quantization
    assert (found.dtype, found.roles) == (dtype, {"attention", "linear"})
    assert (found.block, found.value_bytes) == (block, value_bytes)


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
    for raw in table("model_quantization", "caches"):
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
    assert catalog_model("openai/gpt-oss-20b").quantization.roles == {"experts"}
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
    found = match_modules([alternatives, r"re:model\.layers\.\d+\.self_attn\.o_proj$"])
    assert found.everywhere == {"mlp", "attention.o"}
    assert match_modules(["gate", "mlp.gate", "model.norm"]).everywhere == set()


@over("name, experts, gigabytes", table("model_quantization", "gigabytes"))
def test_experts_may_be_in_4_bit_among_fp8(name, experts, gigabytes):
    model = catalog_model(name)
    roles = ("experts", "attention", "shared", "unquantized", "router")
    stored = [model.quantization.dtype_of(role, "bf16") for role in roles]
    assert stored == [experts, "fp8-block", "fp8-block", "bf16", "bf16"]
    assert model.counted_bytes / 1e9 == pytest.approx(gigabytes, abs=0.1)
    assert model.kv_dtype == "fp8"


def test_what_was_not_quantised_again_stays_fp8(tiny_config):
    again = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignore": ["*.attn.*"]}
    again |= {"quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}}}
    config = tiny_config | {"num_experts": 4, "num_experts_per_tok": 2, "expert_dtype": "fp4"}
    model = quantized(config, again | {"moe_quant_algo": "NVFP4"})
    assert model.quantization.dtype == "nvfp4"
    assert model.quantization.others == (("attention", "fp8-block"),)
    assert all(layer.unquantized == () for layer in model.layers)
    # an expert format that is not known is an error
    config = tiny_config | {"expert_dtype": "fp2"}
    error = refusal(quantized, config, {"quant_method": "fp8"}, kind=ModelError)
    assert "'fp2' is not modelled" in str(error)


@over("model_id, base, weights, cache", table("model_quantization", "a_name_says_model_and_format"))
def test_a_name_says_model_and_format(model_id, base, weights, cache):
    assert not catalog.in_catalog(model_id)
    model = load_model_spec(model_id, folders=False)
    assert (model.name, model.weight_dtype, model.kv_dtype) == (model_id, weights, cache)
    assert model.parameters == catalog_model(base).parameters
    assert f"its name is read as {base}" in model.notes[-1]


@over(
    "model_id, value_bytes, gigabytes", table("model_quantization", "a_name_says_bits_and_groups")
)
def test_bits_groups_and_files_of_a_name_are_counted(model_id, value_bytes, gigabytes):
    model = load_model_spec(model_id, folders=False)
    assert model.quantization.by_name
    assert model.quantization.value_bytes == value_bytes
    assert model.counted_bytes / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_a_gguf_file_has_the_bits_and_the_technique_of_its_type():
    for kind, bits in GGUF_BITS.items():
        if kind != "MXFP4":  # as the experts of gpt-oss are stored; no technique of files
            assert technique(f"gguf_{kind.lower()}").weight_bits == bits
    for said, plain in {"UD-Q4_K_XL": "q4_k_m", "Q8_K_XL": "q8_0", "IQ4_XS": "iq4_xs"}.items():
        model = load_model_spec(f"x/Qwen3-14B-GGUF:{said}", folders=False)
        assert checkpoint_making(model).technique == f"gguf_{plain}"
        assert model.quantization.roles >= {"embedding", "head", "attention", "linear"}
    experts = load_model_spec("ggml-org/gpt-oss-20b-GGUF:MXFP4", folders=False).quantization
    assert (experts.dtype, experts.roles) == ("mxfp4", {"experts"})
    error = refusal(load_model_spec, "x/Qwen3-14B-GGUF:Q9_K", folders=False, kind=ModelError)
    assert "'Q9_K' is no type of a GGUF file" in str(error)


def test_the_config_of_a_repository_of_files_does_not_say_their_format(monkeypatch, tiny_config):
    """Those of GGUF hold the config.json of the base, which is not quantised."""
    asked = []
    monkeypatch.setattr(hub, "hub_config", lambda *a: asked.append(a) or tiny_config)
    model = load_model_spec("nobody/Tiny-GGUF:Q8_0")
    assert asked == [("nobody/Tiny-GGUF", None)]
    assert (model.weight_dtype, model.quantization.by_name) == ("int8", True)
    known = load_model_spec("unsloth/Qwen3-14B-GGUF:Q4_K_M")
    assert (known.weight_dtype, len(asked)) == ("int4", 1)


@over("model_id, feature", table("model_quantization", "not_modelled_by_name"))
def test_what_a_name_says_is_not_modelled_is_named(model_id, feature):
    error = refusal(load_model_spec, model_id, folders=False, kind=ModelError)
    assert feature in str(error)
    assert "not modelled" in str(error)
    assert "Did you mean" not in str(error)


@over("base", ["moonshotai/Kimi-Linear-48B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_copies_of_hybrids_keep_their_cache_and_linear_attention(base):
    plain, copy = catalog_model(base), load_model_spec(f"x/{base.split('/')[1]}-AWQ", folders=False)
    assert copy.mixers == plain.mixers
    assert (copy.dtype, copy.kv_dtype) == (plain.dtype, plain.kv_dtype)
    linear = [layer for layer in copy.layers if isinstance(layer.attention, LinearAttention)]
    assert linear
    assert "mixer" not in copy.quantization.roles
    assert {"attention", "experts"} <= copy.quantization.roles


def test_other_names_stay_unknown():
    names = "nobody/nothing-FP8 nvidia/-FP4 FP8 amd/FP8-KV x/y-Qwen3-14B Qwen/Qwen3-14B-FP9"
    for model_id in names.split():
        assert catalog.derived_model(model_id) is None
        error = refusal(load_model_spec, model_id, folders=False, kind=ModelError)
        assert "unknown model" in str(error)


def test_a_publishers_own_convention_comes_before_another_owners_copy():
    """Qwen's own Qwen3-32B-FP8 is in blocks; what NVIDIA calls so is not."""
    base = "Qwen3-235B-A22B"
    read = [name for name, _ in name_meanings(f"nvidia/{base}-FP8")]
    assert read[:2] == [base, f"{base}-FP8"]
    for owner, weights in (("nvidia", "fp8"), ("someone", "fp8-block")):
        assert load_model_spec(f"{owner}/{base}-FP8", folders=False).weight_dtype == weights
    # a longer ending comes before the one that it ends in
    names = ("x/y-GPTQ-Int4", "x/y-GPTQ-Int8", "x/y-AWQ-INT4", "RedHatAI/y-NVFP4-FP8")
    first = [next(each.ending[:9] for _, each in name_meanings(name) if each) for name in names]
    assert first == ["(-(int)?(", "(-(int)?(", "(-(int4|4", "-nvfp4-fp"]


def test_conventions_agree_with_the_members_whose_configuration_is_known():
    """Bytes of every quantized catalog model derived from its name, against its configuration."""
    errors = {}
    for model_id in catalog_ids():
        own = catalog_model(model_id)
        base = catalog_entry(model_id).same_as
        if own.quantization is None or base is None or catalog_model(base).quantization is not None:
            continue
        plain = catalog_model(base)
        rules = (each for _, each in name_meanings(model_id) if each and each.concerns(plain))
        if (convention := next(rules, None)) is None:
            continue
        stored = convention.applied(catalog_entry(base).config, plain)
        alone = load_model_spec({**stored, "_name_or_path": model_id})
        errors[model_id] = abs(alone.counted_bytes / own.counted_bytes - 1)
    assert len(errors) > 40
    assert statistics.median(errors.values()) < 1e-3
    assert sum(error < 0.03 for error in errors.values()) >= 0.85 * len(errors)
    # members that conventions name are in the catalog
    for each in naming_conventions():
        assert each.like is None or catalog.in_catalog(each.like)
        assert each.like is None or each.read(*each.like.split("/"))


def test_estimates_of_derived_models_say_so():
    values = request_values("nvidia/Qwen3-14B-FP4", "b200-sxm", 1)
    answer = answers.answer_estimate(values)
    assert answer["feasible"]
    assert any("its name is read as Qwen/Qwen3-14B" in note for note in answer["notes"])
    # In the 4-bit mixtures whose parts are known, Laguna and Inkling, attention is in bf16.
    model = load_model_spec("someone/Mixtral-8x7B-Instruct-v0.1-NVFP4", folders=False)
    assert "attention" not in model.quantization.roles
    assert "experts" in model.quantization.roles
