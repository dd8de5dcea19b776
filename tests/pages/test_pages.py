"""Every page and its states, run as Streamlit runs them but without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.model.catalog import catalog_entry
from recipe_core.resources import root
from recipe_core.serve import FOLDERS

PAGES = {
    "model.py": "What do you want to run?",
    "hardware.py": "Where will it run?",
    "objective.py": "What matters?",
    "compare.py": "Which split?",
    "recipe.py": "Take it",
}
TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def opened(page: str = "model.py", **query: str) -> AppTest:
    app = AppTest.from_file(str(root("pages") / "_entry.py"), default_timeout=30)
    app.query_params.update(query)
    app.run()
    if page != "model.py":
        app.switch_page(page).run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def said(app: AppTest) -> str:
    """Everything the page says in words."""
    kinds = (app.title, app.markdown, app.caption, app.success, app.warning, app.error, app.info)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def figure(app: AppTest, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.get_by_key(key).proto.spec)
    return found


def query_of(app: AppTest) -> dict[str, str]:
    return {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_asks_its_question_and_gives_a_verdict(page: str) -> None:
    app = opened(page)
    assert app.title[0].value == PAGES[page]
    assert "splits fit." in app.success[0].value
    assert "Best: **tp" in app.success[0].value


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "query",
    [
        {"model": "deepseek-ai/DeepSeek-V3", "hardware.device": "mi300x"},
        {"model": "Qwen/Qwen3-30B-A3B", "options.weight_dtypes": "auto,fp8", "workload.mode": "open"},
        {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": "1"},
        {"model": LLAMA_70B, "hardware.per_node": "1"},
        {"workload.mode": "static", "hardware.usd_per_device_hour": "2.5", "pins": TP8},
        {"workload.mode": "offline", "objective.limits.usd_per_hour": "0.01"},
        {"model": "nobody/nothing"},
        {"hardware.nodes": "100000"},
    ],
    ids=["mla", "moe-open", "cpu", "too-small", "static-pinned", "limit", "unknown-model", "too-many"],
)
def test_every_page_draws_every_state(page: str, query: dict[str, str]) -> None:
    app = opened(page, **query)
    assert app.title[0].value == PAGES[page]
    assert len(app.success) + len(app.error) >= 1


def test_next_and_back_keep_the_choice() -> None:
    app = opened()
    app.selectbox(key="_model").select("Qwen/Qwen3-8B").run()
    app.button(key="next").click().run()
    assert app.title[0].value == PAGES["hardware.py"]
    assert query_of(app) == {"v": "1", "model": "Qwen/Qwen3-8B"}
    app.button(key="back").click().run()
    assert app.selectbox(key="_model").value == "Qwen/Qwen3-8B"


def test_a_bad_link_is_repaired_and_named() -> None:
    app = opened(**{"hardware.device": "h100-smx", "workload.input_tokens": "-5", "hardware.nodes": "2", "pins": "tp8"})
    warning = app.warning[0].value.replace("\\", "")
    assert "Did you mean 'h100-sxm'" in warning
    assert "workload.input_tokens=-5" in warning
    assert "pins" in warning
    assert query_of(app) == {"v": "1", "hardware.nodes": "2"}
    assert not app.run().warning  # said once


def test_a_training_link_is_refused_in_words() -> None:
    app = opened(**{"workload.kind": "training", "workload.sequence_length": "4096", "workload.global_batch": "8"})
    assert "training is not planned" in app.warning[0].value


def test_an_unknown_model_names_close_ones_and_can_be_left() -> None:
    app = opened(model="meta-llama/Llama-3.1-80B-Instruct")
    assert "Did you mean" in app.error[0].value
    app.button(key="start-over").click().run()
    assert app.success
    assert query_of(app) == {"v": "1"}


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS, "1")
    (tmp_path / "config.json").write_text(json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config))
    app = opened(model=str(tmp_path))
    assert app.metric[0].value == "596 M"
    assert opened(model=str(tmp_path / "missing")).error[0].value.replace("\\", "").startswith("model: there is no config.json")


def test_a_config_in_the_link_is_a_model() -> None:
    app = opened(model=json.dumps(catalog_entry("Qwen/Qwen3-0.6B").config))
    assert app.metric[0].value == "596 M"
    assert app.selectbox(key="_model").value == "config in the link"


def test_a_vendor_brings_its_device_and_drops_the_old_offer() -> None:
    app = opened("hardware.py", **{"hardware.offer": "lambda-h100-sxm"})
    app.get_by_key("_vendor").set_value("amd").run()
    assert query_of(app) == {"v": "1", "hardware.device": "mi300x"}
    assert "8 × mi300x" in said(app)


def test_a_price_of_ones_own() -> None:
    app = opened("hardware.py")
    app.selectbox(key="_price").select("own price").run()
    app.number_input(key="_hardware.usd_per_device_hour").set_value(1.5).run()
    assert query_of(app)["hardware.usd_per_device_hour"] == "1.5"


def test_a_device_says_what_its_estimates_rest_on() -> None:
    assert "fitted to measurements" in said(opened("hardware.py"))
    assert "prior figures" in said(opened("hardware.py", **{"hardware.device": "rtx-5090"}))


def test_a_preset_fills_lengths_and_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_preset").set_value("Batch").run()
    assert query_of(app)["workload.mode"] == "offline"
    assert app.number_input(key="_workload.requests").value == 10_000
    assert app.get_by_key("_preset").value == "Batch"


def test_a_mode_swaps_its_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_workload.mode").set_value("open").run()
    assert app.number_input(key="_workload.request_rate").value == 4.0
    assert query_of(app) == {"v": "1", "workload.mode": "open"}


def test_a_limit_is_set_and_cleared() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    everything = app.success[0].value
    app.number_input(key="_objective.limits.tpot_ms").set_value(40.0).run()
    assert query_of(app)["objective.limits.tpot_ms"] == "40"
    assert app.success[0].value != everything
    app.number_input(key="_objective.limits.tpot_ms").set_value(None).run()
    assert app.success[0].value == everything


def test_an_impossible_edit_is_refused_in_words() -> None:
    app = opened("objective.py")
    app.number_input(key="_workload.max_context").set_value(5).run()
    assert "shorter than" in app.error[0].value
    assert app.number_input(key="_workload.max_context").value is None


def test_nothing_fits_names_the_shortfall_and_the_change_is_one_click() -> None:
    app = opened("compare.py", model=LLAMA_70B, **{"hardware.per_node": "1"})
    assert "GiB too much" in app.error[0].value
    assert len(figure(app, "memory")["layout"]["shapes"]) == 2  # usable and capacity, drawn especially now
    app.button(key="remedy-0").click().run()
    assert app.success
    assert not app.error


def test_a_limit_that_refuses_all_can_be_loosened_by_a_click() -> None:
    app = opened("compare.py", **{"objective.limits.tpot_ms": "0.5"})
    assert "exceeds the limit" in app.error[0].value
    app.button(key="remedy-0").click().run()
    assert app.success


def test_two_limits_that_refuse_all_are_loosened_together() -> None:
    app = opened("compare.py", **{"objective.limits.tpot_ms": "0.5", "objective.limits.ttft_ms": "5"})
    assert "Over a limit" in [trace.get("name") for trace in figure(app, "frontier")["data"]]
    app.button(key="remedy-0").click().run()
    assert app.success


def test_pins_of_a_link_are_drawn_ticked_and_removable() -> None:
    app = opened("compare.py", pins=TP8, **{"objective.limits.tpot_ms": "40"})
    drawn = figure(app, "frontier")
    assert "Pinned" in [trace.get("name") for trace in drawn["data"]]
    assert drawn["layout"]["shapes"][0]["x0"] == 40
    app.button(key=f"unpin-{TP8}").click().run()
    assert "pins" not in query_of(app)


def test_a_pinned_split_is_taken_by_a_click() -> None:
    app = opened("compare.py", pins=TP8)
    app.button(key=f"take-{TP8}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert query_of(app)["candidate.tp"] == "8"
    assert app.selectbox(key="_split").value == TP8


def test_a_pin_that_is_gone_is_said_not_dropped() -> None:
    app = opened("compare.py", pins=TP8, **{"hardware.per_node": "4"})
    assert "is not a split of this plan any more" in said(app)
    assert query_of(app)["pins"] == TP8


def test_the_table_lists_every_split_that_fits_and_the_refused_ones_say_why() -> None:
    app = opened("compare.py", model=LLAMA_70B)
    ranked, refused = app.dataframe[0].value, app.dataframe[1].value
    assert f"{len(ranked)} of {len(ranked) + len(refused)} splits fit" in app.success[0].value
    assert (refused["why"].str.len() > 10).all()


def test_the_recipe_can_be_another_split() -> None:
    app = opened("recipe.py", pins=TP8)
    assert app.selectbox(key="_split").value == ""
    assert "--tensor-parallel-size" in " ".join(code.value for code in app.code)
    app.selectbox(key="_split").select(TP8).run()
    assert query_of(app)["candidate.tp"] == "8"
    assert any("--tensor-parallel-size 8" in code.value for code in app.code)
    assert any("tp: 8" in code.value for code in app.code)


def test_a_chosen_split_that_no_longer_fits_is_said() -> None:
    chosen = {"engine": "vllm", "weight_dtype": "bf16", "kv_dtype": "bf16", "tp": "8", "pp": "1", "dp": "1", "ep": "1"}
    app = opened("recipe.py", **{f"candidate.{name}": value for name, value in chosen.items()}, **{"hardware.per_node": "4"})
    assert "does not fit any more" in app.warning[0].value


def test_a_recipe_over_several_nodes_is_refused_in_words_or_built() -> None:
    app = opened("recipe.py", model="deepseek-ai/DeepSeek-V3", **{"hardware.device": "h100-sxm", "hardware.nodes": "2"})
    if "cannot be built" in said(app):
        app.button(key="one-node").click().run()
        assert "objective.limits.gpus" in query_of(app)
    else:
        assert app.get_by_key("download")


def test_the_recipe_page_shows_bands_and_the_other_doors() -> None:
    app = opened("recipe.py")
    assert "Likely between" in app.dataframe[0].value.columns
    codes = "\n".join(code.value for code in app.code)
    assert "curl" in codes
    assert "/api/v1/plan" in codes
    assert "recipe build request.yaml" in codes
    assert "launch.py preflight" in codes
