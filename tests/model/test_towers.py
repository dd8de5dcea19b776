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
from tests.conftest import make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

QWEN, GEMMA = "Qwen/Qwen3-VL-8B-Instruct", "google/gemma-4-E4B-it"
VISION = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 16}


def _request(model=QWEN, workload=None, **candidate):
    load = {"concurrency": 4, "input_tokens": 512, "output_tokens": 64, **(workload or {})}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, **candidate}
    return make_request(model, workload=load, candidate=split)


@over("name, parameters", table("towers", "a_tower_has_the_parameters_of_its"))
def test_a_tower_has_the_parameters_of_its_modules(name, parameters):
    (tower,) = catalog_model(name).towers
    assert tower.parameters == pytest.approx(parameters, rel=0.006)
    assert sum(item.numel for item in tower.tensors) == tower.parameters


def test_a_model_counts_its_towers_beside_the_language_model():
    model = catalog_model(GEMMA)
    assert [tower.modality for tower in model.towers] == ["image", "audio"]
    towers = sum(tower.parameters for tower in model.towers)
    assert model.parameters == model.language_parameters + towers
    assert model.parameters_by_part["vision encoder"] == model.towers[0].parameters
    assert model.active_parameters < model.language_parameters
    # experts of image tokens are weights
    extras = {item.name: item for item in load_model("baidu/ERNIE-4.5-VL-28B-A3B-PT").extras}
    assert extras["image_experts"].numel == 27 * 64 * 3 * 2560 * 512
    # a text-only model is another architecture
    assert model.serving(None) is model
    assert model.serving(("image", "audio")) is model
    heard = model.serving(("audio",))
    assert [tower.modality for tower in heard.towers] == ["audio"]
    assert heard.left_out == ("image",)
    assert len({model.digest, heard.digest, model.serving(()).digest}) == 3


def test_a_tower_that_is_not_known_is_counted_by_its_sizes_or_not_at_all():
    def read(**vision):
        return read_config({"text_config": table("towers", "text"), "vision_config": vision}, "x")

    model = read(**VISION, model_type="new")
    assert model.towers[0].layers == 3
    assert any("counted by its sizes" in note for note in model.notes)
    without = read(model_type="new")
    assert without.towers == ()
    assert any("vision encoder is not counted" in note for note in without.notes)
    error = refusal(read, **(VISION | {"num_hidden_layers": "many"}), kind=ModelError)
    assert error.field == "model.vision_config.num_hidden_layers"


def test_the_time_of_an_encoder_grows_with_its_depth():
    (tower,) = catalog_model(QWEN).towers
    deeper = replace(tower, layers=2 * tower.layers)
    assert deeper.token_flops > 1.8 * tower.token_flops
    assert deeper.score_flops(1024) == 2 * tower.score_flops(1024)
    assert np.isclose(tower.score_flops(2048), 4 * tower.score_flops(1024))


@over("words, without", table("towers", "commands_that_leave_towers_out"))
def test_commands_that_leave_towers_out(words, without):
    arguments = read_arguments("vllm", [QWEN, *words])
    assert list(meaning_of(arguments).without) == without


def test_another_model_takes_images_out_that_it_does_not_read():
    request = _request(workload={"images": {}, "modalities": ["image"]})
    kept, text = (
        change(request, {"model": name}).workload
        for name in ("google/gemma-3-27b-it", "Qwen/Qwen3-8B")
    )
    assert kept.images is not None
    assert (text.images, text.modalities) == (None, None)
    # images stretch the longest context
    request = _request(workload={"max_context": 2048})
    seen = change(request, {"workload.images": {"per_request": 2, "tokens": 1024}}).workload
    assert seen.max_context == 512 + 64 + 2048
    assert "2 images of 1,024 tokens" in workload_name(seen)


def test_a_launch_leaves_out_what_the_estimate_leaves_out():
    for model, modalities, word in (
        (QWEN, [], "--language-model-only"),
        (GEMMA, ["audio"], "--limit-mm-per-prompt"),
    ):
        launch = decide(_request(model, {"modalities": modalities})).started()
        assert word in launch.processes[0].argv

    # data-parallel encoders are whole on every rank
    def weights(*words):
        command = ["vllm", "serve", QWEN, "-tp", "4", "--max-model-len", "8192", *words]
        return check_command(command, Ground.of(hardware="h100-sxm:4"))["start_bytes"]

    (tower,) = catalog_model(QWEN).towers
    more = weights("--mm-encoder-tp-mode", "data") - weights()
    assert more > 0.75 * 2 * tower.layers * tower.layer_weights * 0.99
    assert weights("--mm-encoder-tp-mode", "weights") == weights()
    assert weights("--language-model-only") < weights()
