"""The page that asks what matters."""

from __future__ import annotations

from tests.pages.opening import LLAMA_70B, opened, query_of


def test_a_preset_fills_lengths_and_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_preset").set_value("batch").run()
    assert query_of(app)["workload.mode"] == "offline"
    assert app.number_input(key="_workload.requests").value == 10_000
    assert app.get_by_key("_preset").value == "batch"


def test_a_mode_swaps_its_load() -> None:
    app = opened("objective.py")
    app.get_by_key("_workload.mode").set_value("open").run()
    assert app.number_input(key="_workload.request_rate").value == 4.0
    assert query_of(app) == {"v": "1", "workload.mode": "open"}


def test_a_limit_is_set_and_cleared() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    everything = app.success[0].value
    app.select_slider(key="_objective.limits.tpot_ms").set_value(40.0).run()
    assert query_of(app)["objective.limits.tpot_ms"] == "40"
    assert app.success[0].value != everything
    app.select_slider(key="_objective.limits.tpot_ms").set_value("no limit").run()
    assert app.success[0].value == everything


def test_a_run_is_bounded_in_time_and_cost() -> None:
    run = {"workload.kind": "training", "workload.tokens": "1e9"}
    app = opened("objective.py", **run)
    everything = app.success[0].value
    for field in ("wall_hours", "usd"):
        key = f"_objective.limits.{field}"
        steps = app.select_slider(key=key).options
        assert steps[-1] == "no limit"
        assert any("split" in option for option in steps)
        tight = {"wall_hours": 1.0, "usd": 60.0}[field]
        app = opened("objective.py", **run, **{f"objective.limits.{field}": str(tight)})
        assert everything not in [shown.value for shown in app.success]
        app.select_slider(key=key).set_value("no limit").run()
        assert app.success[0].value == everything
    app = opened("objective.py", **run, **{"objective.limits.usd": "5000"})
    app.number_input(key="_workload.tokens").set_value(None).run()
    assert "objective.limits.usd" not in query_of(app)
    assert not app.error


def test_an_impossible_edit_is_refused_in_words() -> None:
    app = opened("objective.py")
    app.number_input(key="_workload.max_context").set_value(5).run()
    assert "shorter than" in app.error[0].value
    assert app.number_input(key="_workload.max_context").value is None


def test_each_step_of_a_limit_says_how_many_splits_keep_it() -> None:
    app = opened("objective.py", model=LLAMA_70B)
    slider = app.select_slider(key="_objective.limits.tpot_ms")
    assert all("split" in option for option in slider.options[:-1])
    assert slider.options[-1] == "no limit"


def test_an_aim_is_an_orientation_or_a_goal() -> None:
    app = opened("objective.py")
    app.get_by_key("_aim").set_value("balanced").run()
    assert query_of(app)["objective.orientation"] == "balanced"
    app.get_by_key("_aim").set_value("cost").run()
    assert query_of(app) == {"v": "1", "objective.optimize": "cost"}


def test_adapters_have_a_rank_and_an_alpha() -> None:
    app = opened(
        "objective.py",
        **{"workload.kind": "training", "workload.method": "lora", "workload.lora_rank": "32"},
    )
    app.number_input(key="_workload.lora_alpha").set_value(16.0).run()
    assert query_of(app)["workload.lora_alpha"] == "16"
    app.number_input(key="_workload.lora_alpha").set_value(None).run()
    assert "workload.lora_alpha" not in query_of(app)


def test_what_a_framework_cannot_launch_is_said_where_it_is_chosen() -> None:
    run = {"model": "meta-llama/Llama-3.1-8B", "workload.kind": "training"}
    app = opened("objective.py", **run, **{"workload.method": "lora"})
    box = app.selectbox(key="_candidate.engine")
    assert (box.value, box.options[0]) == ("", "Automatic: Plain torch (torchrun)")
    assert "torchtitan (cannot launch LoRA)" in box.options
    assert "Plain torch (torchrun)" in box.options
    optimizers = app.selectbox(key="_workload.optimizer").options
    assert ("Muon (estimate only)" in optimizers, "AdamW" in optimizers) == (True, True)
    box.select("torchtitan").run()
    assert query_of(app)["candidate.engine"] == "torchtitan"
    assert "torchtitan cannot launch LoRA" in app.error[0].value
    app.selectbox(key="_candidate.engine").select("").run()
    assert "candidate.engine" not in query_of(app)
    assert app.success
