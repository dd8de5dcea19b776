"""Phases, evaluations, checkpoints and failures of a run, as a page asks for them."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from recipe_core.request.phases import Phase
from tests.fixtures.opening import (
    LLAMA_70B,
    assert_says,
    figure,
    open_view,
    opened,
    put,
    query_of,
    words,
)

RUN = {"workload.kind": "training", "workload.tokens": "1e12", "hardware.nodes": "4"}


def run_page(**fields: str) -> AppTest:
    return opened("objective.py", model=LLAMA_70B, **(RUN | fields))


def test_a_run_gets_a_ramp_and_loses_it() -> None:
    app = run_page()
    app.get_by_key("_add_phase").click().run()
    workload = app.session_state["request"].workload
    assert workload.phases == (Phase(tokens=1e11, global_batch=128), Phase(tokens=9e11))
    assert workload.tokens == 1e12
    app.text_input(key="_workload.phases.0.tokens").set_value("2e11").run()
    assert app.session_state["request"].workload.tokens == 1.1e12
    assert "1.10 T tokens in 2 phases" in words(app)
    app.get_by_key("_remove_phase_0").click().run()
    app.get_by_key("_remove_phase_0").click().run()
    assert app.session_state["request"].workload.phases is None


def test_phases_travel_in_a_link_and_a_refused_one_is_named() -> None:
    app = run_page()
    app.get_by_key("_add_phase").click().run()
    again = opened("objective.py", **query_of(app))
    assert again.session_state["request"] == app.session_state["request"]
    assert "Global batch of phase 1" in words(put(app, "_workload.phases.0.global_batch", "half"))
    assert app.session_state["request"].workload.phases[0].global_batch == 128


def test_evaluations_storage_and_spares_are_in_the_link() -> None:
    app = run_page()
    app.get_by_key("_evaluation").set_value(True).run()
    app.get_by_key("_workload.storage").set_value("nvme").run()
    app.text_input(key="_workload.spare_nodes").set_value("2").run()
    query = query_of(app)
    assert query["workload.evaluation.every_steps"] == "1000"
    assert (query["workload.storage"], query["workload.spare_nodes"]) == ("nvme", "2")
    assert not any("evaluation" in name for name in query_of(put(app, "_evaluation", False)))


def test_the_comparison_draws_what_a_run_loses() -> None:
    small = "compare.py?workload.kind=training&workload.tokens=1e12&hardware.nodes=2"
    app = open_view(opened(f"{small}&workload.spare_nodes=1"), "Whole run")
    (bars,) = figure(app, "losses")["data"]
    assert {"Restarts", "Work done again", "Checkpoints"} <= set(bars["y"])
    assert_says(app, "(goodput)", "A spare node is there with a probability of")
