"""The page with the bundle."""

from __future__ import annotations

from tests.pages.opening import PAGES, TP8, opened, query_of, said


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


def test_a_training_split_is_taken_and_packed() -> None:
    app = opened("compare.py", **{"workload.kind": "training", "workload.tokens": "1e9"})
    key = app.dataframe[0].value["key"][1]
    app = opened("compare.py", pins=key, **{"workload.kind": "training", "workload.tokens": "1e9"})
    app.button(key=f"take-{key}").click().run()
    assert app.title[0].value == PAGES["recipe.py"]
    assert app.selectbox(key="_split").value == key
    assert app.get_by_key("download")
    assert any("torchtitan.train" in code.value for code in app.code)
    assert "Likely between" in app.dataframe[0].value.columns
