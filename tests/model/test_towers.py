"""Vision and audio encoders: read from configs, held in memory, and their time."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base.errors import ModelError
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.commands.meaning import meaning_of
from recipe_core.model.catalog import catalog_model, load_model
from recipe_core.model.config.read import read_config
from recipe_core.recipe.decision import decide
from recipe_core.request.describe import workload_name
from recipe_core.request.edit import change
from recipe_core.request.link import from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

TEXT = table("towers", "text")
VISION = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 16}


def _request(model, workload=None, candidate=None):
    load = {"concurrency": 4, "input_tokens": 512, "output_tokens": 64, **(workload or {})}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, **(candidate or {})}
    hardware = {"device": "h100-sxm", "per_node": 8}
    values = {"model": model, "hardware": hardware, "workload": load, "candidate": split}
    return PlanRequest.parse(values)


def _estimate(model="Qwen/Qwen3-VL-8B-Instruct", workload=None, candidate=None):
    plan, row = plan_candidate(_request(model, workload, candidate))
    return plan.estimate(row)


@over("name, parameters", table("towers", "a_tower_has_the_parameters_of_its"))
def test_a_tower_has_the_parameters_of_its_modules(name, parameters):
    (tower,) = catalog_model(name).towers
    assert tower.parameters == pytest.approx(parameters, rel=0.006)
    assert sum(item.numel for item in tower.tensors) == tower.parameters


def test_a_model_counts_its_towers_beside_the_language_model():
    model = catalog_model("google/gemma-4-E4B-it")
    assert [tower.modality for tower in model.towers] == ["image", "audio"]
    towers = sum(tower.parameters for tower in model.towers)
    assert model.parameters == model.language_parameters + towers
    assert model.parameters_by_part["vision encoder"] == model.towers[0].parameters
    assert model.active_parameters < model.language_parameters
    # experts of image tokens are weights
    model = load_model("baidu/ERNIE-4.5-VL-28B-A3B-PT")
    by_name = {item.name: item for item in model.extras}
    assert by_name["image_experts"].numel == 27 * 64 * 3 * 2560 * 512
    # a text-only model is another architecture
    model = catalog_model("google/gemma-4-E4B-it")
    assert model.serving(None) is model
    assert model.serving(("image", "audio")) is model
    heard = model.serving(("audio",))
    assert [tower.modality for tower in heard.towers] == ["audio"]
    assert heard.left_out == ("image",)
    assert len({model.digest, heard.digest, model.serving(()).digest}) == 3


def test_a_tower_that_is_not_known_is_counted_by_its_sizes_or_not_at_all():
    def read(**vision):
        return read_config({"text_config": TEXT, "vision_config": vision}, "x")

    model = read(**VISION, model_type="new")
    assert model.towers[0].layers == 3
    assert any("counted by its sizes" in note for note in model.notes)
    without = read(model_type="new")
    assert without.towers == ()
    assert any("vision encoder is not counted" in note for note in without.notes)
    error = refusal(read, **(VISION | {"num_hidden_layers": "many"}), kind=ModelError)
    assert error.field == "model.vision_config.num_hidden_layers"


def test_the_encoder_is_in_the_weights_and_a_part_of_its_own():
    whole, text = _estimate(), _estimate(workload={"modalities": []})
    (tower,) = catalog_model("Qwen/Qwen3-VL-8B-Instruct").towers
    assert whole.memory.encoder_bytes == 2 * tower.parameters
    assert text.memory.encoder_bytes == 0
    lighter = whole.memory.weights_bytes - text.memory.weights_bytes
    assert lighter == pytest.approx(whole.memory.encoder_bytes)
    freed = text.memory.kv_cache_bytes - whole.memory.kv_cache_bytes
    assert freed > lighter  # the profile run keeps outputs of the encoder, too
    assert whole.serving.tpot_s == pytest.approx(text.serving.tpot_s)  # decoding reads none
    # its time grows with its depth
    (tower,) = catalog_model("Qwen/Qwen3-VL-8B-Instruct").towers
    deeper = replace(tower, layers=2 * tower.layers)
    assert deeper.token_flops > 1.8 * tower.token_flops
    assert deeper.score_flops(1024) == 2 * tower.score_flops(1024)
    assert np.isclose(tower.score_flops(2048), 4 * tower.score_flops(1024))


def test_layers_of_a_tower_are_cut_over_ranks_whose_number_divides_its_heads():
    whole, two = _estimate(), _estimate(candidate={"tp": 2})
    (tower,) = catalog_model("Qwen/Qwen3-VL-8B-Instruct").towers
    cut = tower.layers * tower.layer_weights  # 16 heads
    assert whole.memory.encoder_bytes - two.memory.encoder_bytes == pytest.approx(cut)
    three = [_estimate("google/gemma-4-31B-it", candidate={"tp": tp}) for tp in (2, 4)]
    assert three[0].memory.encoder_bytes == three[1].memory.encoder_bytes  # never cut
    # a longer profile run takes from the cache
    longest = {"max_context": 32768}
    few, many = (
        _estimate(workload=longest, candidate={"max_num_seqs": 8, "max_batched_tokens": tokens})
        for tokens in (16384, 65536)
    )
    assert many.memory.activations_bytes > 3 * few.memory.activations_bytes


def test_images_lengthen_the_prompt_and_the_time_to_the_first_token():
    images = {"images": {"per_request": 2, "tokens": 1024}}
    seen, as_text = _estimate(workload=images), _estimate(workload={"input_tokens": 512 + 2048})
    assert seen.memory.kv_needed_bytes == pytest.approx(as_text.memory.kv_needed_bytes)
    assert seen.serving.ttft_s > 1.1 * as_text.serving.ttft_s
    # they need a model that sees
    blind = (_estimate, "Qwen/Qwen3-8B", {"images": {}})
    assert refusal(*blind).field == "workload.images"
    unseen = {"images": {}, "modalities": []}
    assert refusal(_estimate, workload=unseen).field == "workload.images"


@over("words, without", table("towers", "commands_that_leave_towers_out"))
def test_commands_that_leave_towers_out(words, without):
    arguments = read_arguments("vllm", ["Qwen/Qwen3-VL-8B-Instruct", *words])
    assert list(meaning_of(arguments).without) == without


def test_a_link_keeps_images_and_what_is_read():
    for workload in (
        {"images": {}},
        {"images": {"tokens": 256}},
        {"audio": {"per_request": 0.5}},
        {"modalities": []},
        {"modalities": ["audio"]},
    ):
        request = _request("google/gemma-4-E4B-it", workload)
        assert from_query(to_query(request)) == (request, [])


def test_another_model_takes_images_out_that_it_does_not_read():
    request = _request("Qwen/Qwen3-VL-8B-Instruct", {"images": {}, "modalities": ["image"]})
    kept = change(request, {"model": "google/gemma-3-27b-it"})
    assert kept.workload.images is not None
    text = change(request, {"model": "Qwen/Qwen3-8B"})
    assert text.workload.images is None
    assert text.workload.modalities is None
    # images stretch the longest context
    request = _request("Qwen/Qwen3-VL-8B-Instruct", {"max_context": 2048})
    seen = change(request, {"workload.images": {"per_request": 2, "tokens": 1024}})
    assert seen.workload.max_context == 512 + 64 + 2048
    workload = _request("Qwen/Qwen3-VL-8B-Instruct", {"images": {"per_request": 2}}).workload
    assert "2 images of 1,024 tokens" in workload_name(workload)


def test_a_launch_leaves_out_what_the_estimate_leaves_out():
    for model, modalities, word in (
        ("Qwen/Qwen3-VL-8B-Instruct", [], "--language-model-only"),
        ("google/gemma-4-E4B-it", ["audio"], "--limit-mm-per-prompt"),
    ):
        launch = decide(_request(model, {"modalities": modalities})).started()
        assert word in launch.processes[0].argv

    # data-parallel encoders are whole on every rank
    def weights(*words):
        command = ["vllm", "serve", "Qwen/Qwen3-VL-8B-Instruct", "--tensor-parallel-size", "4"]
        command += ["--max-model-len", "8192", *words]
        return check_command(command, Ground.of(hardware="h100-sxm:4"))["start_bytes"]

    (tower,) = catalog_model("Qwen/Qwen3-VL-8B-Instruct").towers
    more = weights("--mm-encoder-tp-mode", "data") - weights()
    assert more > 0.75 * 2 * tower.layers * tower.layer_weights * 0.99
    assert weights("--mm-encoder-tp-mode", "weights") == weights()
    assert weights("--language-model-only") < weights()
