"""The page that asks what matters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.search.plans import plan
from tests.fixtures.opening import LLAMA_70B, opened, put, query_of, words


def test_a_mode_swaps_its_load_and_a_preset_fills_lengths_too() -> None:
    app = opened("objective.py")
    boxes = {box.key: box for box in app.text_input}
    assert "from 1 to 1,048,576" in boxes["_workload.concurrency"].help
    assert "from 0 to below 1" in boxes["_workload.prefix_hit"].help
    assert all("Takes a" in box.help for box in boxes.values())
    assert put(app, "_workload.mode", "open").text_input(key="_workload.request_rate").value == "4"
    assert query_of(app) == {"v": "1", "workload.mode": "open"}
    assert query_of(put(app, "_preset", "batch"))["workload.mode"] == "offline"
    assert app.text_input(key="_workload.requests").value == "10,000"
    assert app.get_by_key("_preset").value == "batch"


TPOT = "_objective.limits.tpot_ms"


def test_a_limit_is_dragged_typed_and_cleared() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    assert query_of(put(app, f"{TPOT}_slider", 40.0))["objective.limits.tpot_ms"] == "40"
    assert app.text_input(key=TPOT).value == "40"
    assert "workload.concurrency" not in query_of(app)  # the largest load is searched
    assert "in flight within the limits" in words(app)
    assert query_of(put(app, TPOT, "37"))["objective.limits.tpot_ms"] == "37"
    slider = app.select_slider(key=f"{TPOT}_slider")
    assert slider.value == 37.0
    assert "37 ms" in slider.options
    slider.set_value(35.0).run()
    assert app.text_input(key=TPOT).value == "35"
    assert "37 ms" not in app.select_slider(key=f"{TPOT}_slider").options
    assert "objective.limits.tpot_ms" not in query_of(put(app, TPOT, ""))
    assert app.select_slider(key=f"{TPOT}_slider").value == "no limit"


@pytest.mark.nightly
def test_steps_of_a_limit_do_not_follow_the_other_limits() -> None:
    links = (f"model={LLAMA_70B}", f"model={LLAMA_70B}&objective.limits.ttft_ms=500")
    free, *limited = (
        opened(f"objective.py?{link}").select_slider(key=f"{TPOT}_slider").options
        for link in (*links, "workload.concurrency=8")
    )
    assert limited == [free, free]


@pytest.mark.nightly
def test_a_limit_says_how_many_splits_keep_it() -> None:
    limited = "objective.py?objective.limits.tpot_ms=40"
    app = opened(limited, model=LLAMA_70B)
    board = plan(app.session_state["request"])
    line = f"{len(board.order)} of {int(board.runs.sum())} splits keep it"
    assert line in words(app).split("\n")
    free = opened("objective.py", model=LLAMA_70B)
    board = plan(free.session_state["request"])
    assert f"{len(board.order)} splits without this limit" in words(free).split("\n")
    nowhere = opened(limited, hardware_chosen=False, model=LLAMA_70B)
    assert "Splits are counted once hardware is chosen." in words(nowhere).split("\n")


def test_a_load_is_searched_or_fixed_where_a_time_is_limited() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    assert "_load" not in [group.key for group in app.segmented_control]
    app.text_input(key=TPOT).set_value("40").run()
    box = app.text_input(key="_workload.concurrency")
    assert app.segmented_control(key="_load").value == "most"
    assert (box.value, box.disabled) == ("", True)
    assert "workload.concurrency" not in query_of(app)
    app.segmented_control(key="_load").set_value("fixed").run()
    box = app.text_input(key="_workload.concurrency")
    assert (box.value, box.disabled) == ("64", False)
    assert query_of(app)["workload.concurrency"] == "64"
    assert put(app, "_workload.concurrency", "128").segmented_control(key="_load").value == "fixed"
    assert "workload.concurrency" not in query_of(put(app, "_load", "most"))
    assert put(app, TPOT, "").text_input(key="_workload.concurrency").value == "64"
    assert not app.error


def test_a_latency_is_asked_for_in_seconds() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    key = "_objective.limits.request_latency_ms"
    assert query_of(put(app, key, "7.5 s"))["objective.limits.request_latency_ms"] == "7500"
    assert app.text_input(key=key).value == "7.5"
    assert query_of(put(app, f"{key}_slider", 8.0))["objective.limits.request_latency_ms"] == "8000"


def assert_understood(app: AppTest, field: str, numbers: Mapping[str, str]) -> None:
    """What is typed into a box, and how it is shown."""
    for typed, shown in numbers.items():
        assert not put(app, f"_{field}", typed).error
        assert app.text_input(key=f"_{field}").value == shown
        assert query_of(app)[field] == shown.replace(",", "")


def test_a_number_is_understood_as_people_write_it() -> None:
    app = opened("objective.py")
    loads = {"2k": "2,000", "1,000": "1,000", "4Ki": "4,096", "1 000": "1,000", "1e3": "1,000"}
    assert_understood(app, "workload.concurrency", loads)
    assert "nothing is decoded" in words(put(app, "_workload.output_tokens", "1"))
    assert not app.error
    app = opened("objective.py?workload.kind=training")
    tokens = {"10B": "10,000,000,000", "1e9": "1,000,000,000"}
    assert_understood(app, "workload.tokens", tokens)


def test_a_refused_number_names_field_value_and_range_and_the_old_one_stays() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    before = query_of(app)
    for typed in ("1e9", "-5", "0", "99999999999", "1.5", "many"):
        app.text_input(key="_workload.concurrency").set_value(typed).run()
        said = app.error[0].value.replace("\\", "")
        for part in ("Requests in flight", typed, "from 1 to 1,048,576", "64 stays in effect"):
            assert part in said
        assert app.text_input(key="_workload.concurrency").value == "64"
        assert query_of(app) == before
    assert "shorter than" in put(app, "_workload.max_context", "5").error[0].value
    assert app.text_input(key="_workload.max_context").value == ""
    assert not put(app, "_workload.concurrency", "32").error
    assert query_of(app)["workload.concurrency"] == "32"


def test_several_loads_are_shown_and_changed() -> None:
    app = opened("objective.py?options.loads=16,256", model=LLAMA_70B)
    assert app.text_input(key="_options.loads").value == "16, 256"
    app.text_input(key="_options.loads").set_value("16; 1k 2048").run()
    assert app.text_input(key="_options.loads").value == "16, 1000, 2048"
    assert query_of(app)["options.loads"] == "16,1000,2048"
    assert "many" in put(app, "_options.loads", "16, many").error[0].value
    assert query_of(app)["options.loads"] == "16,1000,2048"
    assert "options.loads" not in query_of(put(app, "_options.loads", ""))


@pytest.mark.nightly
def test_a_run_is_bounded_in_time_and_cost() -> None:
    run = "objective.py?workload.kind=training&workload.tokens=1e9"
    app = opened(run)
    everything = app.success[0].value
    for field, tight in {"wall_hours": 1.0, "usd": 60.0}.items():
        key = f"_objective.limits.{field}"
        assert app.select_slider(key=f"{key}_slider").options[-1] == "no limit"
        app = opened(f"{run}&objective.limits.{field}={tight}")
        assert everything not in [shown.value for shown in app.success]
        assert put(app, f"{key}_slider", "no limit").success[0].value == everything
    app = opened(f"{run}&objective.limits.usd=5000")
    assert "objective.limits.usd" not in query_of(put(app, "_workload.tokens", ""))
    assert not app.error


def test_an_aim_is_an_orientation_a_goal_or_several() -> None:
    app = opened("objective.py")
    assert query_of(put(app, "_aim", "balanced"))["objective.orientation"] == "balanced"
    assert query_of(put(app, "_aim", "cost")) == {"v": "1", "objective.optimize": "cost"}
    app.get_by_key("_aim").set_value("all-three").run()
    weights = {f"objective.weights.{goal}": "1" for goal in ("tpot", "cost", "accuracy")}
    assert weights.items() <= query_of(app).items()
    assert query_of(put(app, "_aim", "accuracy")) == {"v": "1", "objective.optimize": "accuracy"}


def test_accuracy_is_bounded_in_percent_of_a_kind_of_benchmark() -> None:
    app = opened("objective.py", model="Qwen/Qwen3-8B-AWQ")
    app.select_slider(key="_objective.limits.accuracy_recovery_slider").set_value(99.0).run()
    assert query_of(app)["objective.limits.accuracy_recovery"] == "0.99"
    app.text_input(key="_objective.limits.accuracy_recovery").set_value("50").run()
    app.selectbox(key="_objective.accuracy_of").set_value("math").run()
    stated = query_of(app)
    assert stated["objective.limits.accuracy_recovery"] == "0.5"
    assert stated["objective.accuracy_of"] == "math"
    assert "Accuracy kept" in put(app, "_objective.limits.accuracy_recovery", "101").error[0].value


LORA = "workload.kind=training&workload.method=lora"


def test_adapters_have_a_rank_and_an_alpha() -> None:
    app = opened(f"objective.py?{LORA}&workload.lora_rank=32")
    assert query_of(put(app, "_workload.lora_alpha", "16"))["workload.lora_alpha"] == "16"
    assert "workload.lora_alpha" not in query_of(put(app, "_workload.lora_alpha", ""))


def test_what_a_framework_cannot_launch_is_said_where_it_is_chosen() -> None:
    app = opened(f"objective.py?{LORA}&model=meta-llama/Llama-3.1-8B")
    box = app.selectbox(key="_candidate.engine")
    assert (box.value, box.options[0]) == ("", "Automatic: Plain torch (torchrun)")
    assert "torchtitan (cannot launch LoRA)" in box.options
    assert "Plain torch (torchrun)" in box.options
    optimizers = app.selectbox(key="_workload.optimizer").options
    assert ("Muon (estimate only)" in optimizers, "AdamW" in optimizers) == (True, True)
    box.select("torchtitan").run()
    assert query_of(app)["candidate.engine"] == "torchtitan"
    assert "torchtitan cannot launch LoRA" in app.error[0].value
    assert "candidate.engine" not in query_of(put(app, "_candidate.engine", ""))
    assert app.success


def test_images_are_asked_of_models_that_read_them() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    assert [toggle.key for toggle in app.toggle if toggle.key == "_images"] == []
    app = opened("objective.py", model="Qwen/Qwen3-VL-8B-Instruct")
    assert put(app, "_images", True).text_input(key="_workload.images.tokens").value == "1,024"
    app.text_input(key="_workload.images.per_request").set_value("2").run()
    assert query_of(app)["workload.images.per_request"] == "2"
    app.toggle(key="_images").set_value(False).run()
    assert not [name for name in query_of(app) if name.startswith("workload.images")]


def test_windows_are_offered_for_engines_that_wait_to_fill_a_batch() -> None:
    key = "_options.batch_windows_ms"
    app = opened("objective.py", model="BAAI/bge-m3")
    assert key not in [group.key for group in app.button_group]
    assert not put(app, "_options.engines", ["tei", "triton-onnxruntime"]).exception
    assert not put(app, key, [0.0, 5.0]).exception
    assert query_of(app)["options.batch_windows_ms"] == "0,5"
