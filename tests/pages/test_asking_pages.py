"""The pages that ask: start, model, traffic and hardware, and the frame around them.

``test_sessions.py`` has what edits do to widgets and the link.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.doors.settings import variable
from recipe_core.engines.spec import engine
from recipe_core.engines.training_programs import program_facts
from recipe_core.models.catalog import catalog_entry
from recipe_core.models.search import model_facts
from recipe_core.plans.plans import plan_splits
from recipe_core.request.link import link_query
from recipe_core.request.phases import Phase
from recipe_core.request.presets import examples
from recipe_core.views.glossary import glossary
from tests.fixtures.opening import (
    CHOSEN,
    LLAMA_70B,
    assert_says,
    codes,
    edited,
    figure,
    open_view,
    opened,
    press,
    put,
    query_of,
    shown,
    states_hardware,
    words,
)
from tests.fixtures.rows import table

SMALL = catalog_entry("Qwen/Qwen3-0.6B").config
LATENCY = "_objective.limits.request_latency_ms"
RUN = {"workload.kind": "training", "workload.tokens": "1e12", "hardware.nodes": "4"}


def has_button(app: AppTest, key: str) -> bool:
    return any(button.key == key for button in app.button)


def error(app: AppTest) -> str:
    return str(app.error[0].value).replace("\\", "")


# Start


def test_a_case_is_a_card_and_three_buttons_lead_on() -> None:
    cases = examples().values()
    texts = (text for case in list(cases)[:6] for text in (case.text, case.question))
    assert_says(opened("home.py", hardware_chosen=False), *texts)


def test_a_case_is_a_link_to_its_plan_on_its_own_hardware() -> None:
    links = [dict(parse_qsl(link.proto.query_string)) for link in home().get("page_link")]
    for case in list(examples().values())[:6]:
        query = link_query(case.asked)
        assert query | ({} if states_hardware(query) else CHOSEN) in links


@pytest.mark.parametrize("name", ["chat-70b", "lora"])
def test_a_case_opens_on_its_plan(name: str) -> None:
    query = link_query(examples()[name].asked)
    app = opened("plan.py", **query)
    assert query_of(app) == query | ({} if states_hardware(query) else CHOSEN)
    assert app.dataframe[0].value["key"].size


OPEN = {"v": "1", "workload.max_context": "16384", "objective.optimize": "cost"}
"""The link of a new plan: chats, on hardware that is to be found: cost is what counts of it."""


def home() -> AppTest:
    return opened("home.py", hardware_chosen=False)


def test_the_doors_lead_to_the_model_and_to_the_check() -> None:
    app = press(home(), "door-training")
    assert (app.session_state["page"], query_of(app)["workload.kind"]) == ("model.py", "training")
    app = press(home(), "door-serving")
    assert (app.session_state["page"], query_of(app)) == ("model.py", OPEN)
    app = press(home(), "door-check")
    assert app.session_state["page"] == "check.py"


def shown_traffic(app: AppTest) -> tuple[str, str]:
    """What the boxes of the screen Traffic show: the kind, and the longest request."""
    app.switch_page("traffic.py").run()
    return app.selectbox(key="_preset").value, app.text_input(key="_workload.max_context").value


def test_a_new_plan_starts_as_chat_with_its_longest_request_and_a_link_as_it_says() -> None:
    app = home()
    assert shown_traffic(app) == ("chat", "16,384")
    edited(app, {"model": "google/gemma-2-9b-it"})
    assert shown_traffic(app) == ("chat", "8,192")
    edited(app, {"model": "Qwen/Qwen3-8B"})
    assert shown_traffic(app) == ("chat", "16,384")
    put(app, "_preset", "rag")
    assert shown_traffic(app) == ("rag", "32,768")
    press(app, "new")
    assert (shown_traffic(app), query_of(app)) == (("chat", "16,384"), OPEN)
    # a link that states something means what it meant before: the longest is left out
    app = opened("traffic.py", model="Qwen/Qwen3-8B")
    assert "workload.max_context" not in query_of(app)
    assert app.text_input(key="_workload.max_context").value == ""


def test_a_model_that_is_found_at_the_start_opens_its_plan() -> None:
    app = opened("home.py", hardware_chosen=False, any='{"devices":["h100-sxm"]}')
    put(app, "home-text", "Qwen/Qwen3-8B")
    assert (app.session_state["page"], query_of(app)["model"]) == ("plan.py", "Qwen/Qwen3-8B")
    assert app.title[0].value == "Qwen3-8B"
    assert has_button(app, "ship")


def test_a_link_of_the_time_when_the_start_asked_for_the_model_opens_that() -> None:
    app = opened("model.py", model="Qwen/Qwen3-8B", **{"hardware.device": "mi300x"})
    assert app.session_state["page"] == "model.py"
    app.switch_page("home.py").run()
    assert app.session_state["page"] == "home.py"  # later it is what the reader opens
    (plan,) = (link.proto for link in app.get("page_link") if link.proto.label == "Plan")
    assert "Qwen3-8B" in plan.query_string


@pytest.mark.nightly
def test_the_glossary_opens_on_every_page() -> None:
    texts = [glossary().terms[name].text for name in ("ttft", "gqa", "mfu", "commitment")]
    for page in ("home.py", "model.py", "plan.py", "check.py"):
        assert_says(press(opened(page), "glossary"), *texts)


# The frame


def assert_drawn(state: str, page: str) -> None:
    """A page says of a state what is decided, or what keeps it from that."""
    app = opened(f"{page}?{STATES[state]}")
    assert app.session_state["page"] == page
    assert len(app.title) == 1
    decided = len(app.header) if page in ("plan.py", "ship.py") else len(bar_of(app))
    assert decided + len(app.warning) + len(app.error) >= 1


def bar_of(app: AppTest) -> str:
    """What the foot of a screen says; empty without a bar."""
    texts = (str(text.value) for text in app.markdown)
    return next((text for text in texts if "]\\\n:small[" in text), "")


STATES = table("sessions", "states")
DRAWN = ("traffic.py", "plan.py", "ship.py")


@pytest.mark.parametrize("state", list(STATES)[::2])
def test_a_page_draws_a_state(state: str) -> None:
    """A share of the next test: every other state, each on one page."""
    assert_drawn(state, DRAWN[list(STATES).index(state) % len(DRAWN)])


@pytest.mark.nightly
@pytest.mark.parametrize("page", DRAWN)
@pytest.mark.parametrize("state", STATES)
def test_every_page_draws_every_state(state: str, page: str) -> None:
    assert_drawn(state, page)


# The model


def test_a_name_without_a_model_offers_the_nearest() -> None:
    app = opened(model="llama70b")
    labels = [app.button(key=f"page-near-{n}").label.replace("\\", "") for n in range(5)]
    assert LLAMA_70B in labels
    assert set(labels) <= set(model_facts())
    assert query_of(press(app, f"page-near-{labels.index(LLAMA_70B)}"))["model"] == LLAMA_70B
    assert not app.error
    # for nonsense there is nothing but the upload
    assert not has_button(opened(model="asdfghjkl"), "page-near-0")
    assert query_of(put(app, "model-text", "Qwen/Qwen3-32B"))["model"] == "Qwen/Qwen3-32B"


@pytest.mark.parametrize("page", ["plan.py", "ship.py"])
@pytest.mark.parametrize("chosen", [True, False])
def test_a_model_that_there_is_not_is_said_once_with_the_ways_out(page: str, chosen: bool) -> None:
    app = opened(page, hardware_chosen=chosen, model="llama70b")
    assert len(app.error) == 1
    assert "unknown model" in error(app)
    assert has_button(app, "answer-near-0")
    assert has_button(app, "start-over")


def test_a_config_is_a_model_by_folder_link_and_paste_and_a_bad_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable("folders"), "1")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert opened(model=str(tmp_path)).metric[0].value == "596 M"
    assert error(opened(model=str(tmp_path / "missing"))).startswith("model: no config.json")
    app = opened(model=json.dumps(SMALL))
    assert app.metric[0].value == "596 M"
    assert app.header[0].value == "The model of the link"
    app = put(opened(), "paste", json.dumps(SMALL | {"junk": [1] * 1000}))
    assert app.metric[0].value == "596 M"
    assert "junk" not in query_of(app)["model"]
    assert "not valid JSON" in error(put(app, "paste", "not a config"))
    assert app.metric[0].value == "596 M"
    put(app, "upload", ("model.json", b"PK\x03\x04", "application/json"))
    assert "weights are never read" in error(app)


def test_an_uploaded_config_has_a_name_and_a_place_of_its_weights() -> None:
    app = opened("?candidate.tp=1&candidate.pp=1&candidate.dp=1")
    names = []
    for config in (SMALL | {"num_hidden_layers": 14}, SMALL):
        put(app, "upload", ("config.json", json.dumps(config).encode(), "application/json"))
        names.append(app.text_input(key="_upload-name").value)
    assert names[0].startswith("qwen3-")
    assert names[0] != names[1] == "qwen3-0.596b"  # two uploads are told apart
    assert_says(app, "28 layers, 596 M parameters", "Left open, the start command asks")
    put(app, "_upload-name", "acme-tiny")
    kept = json.loads(query_of(put(app, "_upload-weights", "acme/tiny"))["model"])
    assert (kept["name"], kept["weights"]) == ("acme-tiny", "acme/tiny")
    assert "no place of weights" in error(put(app, "_upload-weights", "somewhere else"))
    assert json.loads(query_of(app)["model"])["weights"] == "acme/tiny"
    app.switch_page("ship.py").run()
    given = "\n".join(codes(app))
    assert "acme/tiny" in given
    assert "--served-model-name acme-tiny" in given
    app.switch_page("model.py").run()
    press(app, "remove-upload")
    assert "model" not in query_of(app)
    assert app.header[0].value.replace("\\", "") == "meta-llama/Llama-3.1-8B-Instruct"


def test_the_architecture_is_drawn_when_it_is_unfolded() -> None:
    app = opened(model=LLAMA_70B)
    assert not app.table
    assert "grouped-query" in shown(app, architecture=True).table[0].value.to_string()
    assert "Feed-forward" in json.dumps(figure(app, "parts"))


# The objective


def test_boxes_say_what_they_take() -> None:
    """In their help, but for the few that everybody fills in: these say it where they refuse."""
    boxes = {box.key: box.help for box in opened("traffic.py").text_input}
    assert "from 0 to below 1" in boxes["_workload.prefix_hit"]
    assert "in s." in boxes["_objective.limits.request_latency_ms"]
    plain = {key for key, text in boxes.items() if not text}
    assert all("Takes a" in text for key, text in boxes.items() if key not in plain)
    app = opened("traffic.py")
    for key in sorted(plain):
        assert "a number" in error(put(app, key, "x")) or "a whole number" in error(app), key


def test_how_lengths_vary_is_one_question_whose_answer_a_link_keeps() -> None:
    app = opened("traffic.py", model=LLAMA_70B)
    asked = app.selectbox(key="_variation")
    assert (asked.value, len(asked.options)) == ("usual", 3)
    assert {"_workload.input_spread", "_workload.output_spread"} <= boxes_of(app)
    wide = put(app, "_variation", "chats")
    query = query_of(wide)
    for side in ("input", "output"):
        assert query[f"workload.{side}_lengths.shape"] == "lognormal"
        assert query[f"workload.{side}_lengths.cv"] == "1"
    assert "widely varied" in words(wide)
    assert not {"_workload.input_spread", "_workload.output_spread"} & boxes_of(wide)
    again = opened("traffic.py", **query)
    assert again.selectbox(key="_variation").value == "chats"
    exact = put(again, "_variation", "exact")
    assert exact.session_state["request"].workload.exact
    assert query_of(exact)["workload.input_spread"] == "0"
    assert "workload.input_lengths.shape" not in query_of(exact)
    own = put(exact, "_workload.input_spread", "0.4")
    assert own.selectbox(key="_variation").value == ""
    assert own.selectbox(key="_variation").options[0] == "Your own figures"
    static = opened("traffic.py", model=LLAMA_70B, **{"workload.mode": "static"})
    assert not [box for box in static.selectbox if box.key == "_variation"]
    assert not put(wide, "_workload.mode", "static").exception


def boxes_of(app: AppTest) -> set[str]:
    return {box.key for box in app.text_input}


@pytest.mark.nightly
def test_steps_of_a_limit_do_not_follow_the_other_limits() -> None:
    free, *limited = (
        opened("traffic.py", model=LLAMA_70B, **fields)
        .select_slider(key=f"{LATENCY}_slider")
        .options
        for fields in ({}, {"objective.limits.ttft_ms": "500"}, {"workload.concurrency": "8"})
    )
    assert limited == [free, free]


@pytest.mark.nightly
def test_a_limit_says_how_many_splits_keep_it() -> None:
    limited = "traffic.py?objective.limits.request_latency_ms=9000"
    app, free = (opened(link, model=LLAMA_70B) for link in (limited, "traffic.py"))
    board, every = (plan_splits(page.session_state["request"]) for page in (app, free))
    line = f"{len(board.order)} of {int(board.runs.sum())} layouts keep it"
    assert line in words(app).split("\n")
    assert f"{len(every.order)} layouts without this limit" in words(free).split("\n")
    nowhere = opened(limited, hardware_chosen=False, model=LLAMA_70B)
    assert not re.search(r"\d layouts", words(nowhere))


@pytest.mark.nightly
def test_a_run_is_bounded_in_time_and_cost() -> None:
    run = "traffic.py?workload.kind=training&workload.tokens=1e9"
    everything = bar_of(opened(run))
    for field, tight in {"wall_hours": 1.0, "usd": 60.0}.items():
        app = opened(f"{run}&objective.limits.{field}={tight}")
        assert bar_of(app) != everything
        assert bar_of(put(app, f"_objective.limits.{field}", "")) == everything
    app = opened(f"{run}&objective.limits.usd=5000")
    assert "objective.limits.usd" not in query_of(put(app, "_workload.tokens", ""))
    assert not app.error


def test_a_run_gets_a_ramp_that_travels_in_its_link_and_loses_it() -> None:
    app = press(opened("traffic.py", model=LLAMA_70B, **RUN), "_add_phase")
    workload = app.session_state["request"].workload
    assert workload.phases == (Phase(tokens=1e11, global_batch=128), Phase(tokens=9e11))
    assert workload.tokens == 1e12
    again = opened("traffic.py", **query_of(app))
    assert again.session_state["request"] == app.session_state["request"]
    assert "Global batch of phase 1" in words(put(app, "_workload.phases.0.global_batch", "half"))
    assert app.session_state["request"].workload.phases[0].global_batch == 128
    put(app, "_workload.phases.0.tokens", "2e11")
    assert app.session_state["request"].workload.tokens == 1.1e12
    assert "1.10 T tokens in 2 phases" in words(app)
    press(press(app, "_remove_phase_0"), "_remove_phase_0")
    assert app.session_state["request"].workload.phases is None


def test_answers_are_sampled_by_the_engines_that_a_framework_can_launch() -> None:
    rollout = {"workload.rollout.prompts": "128", "workload.rollout.response_tokens": "1024"}
    app = opened("traffic.py", **RUN | rollout | {"workload.method": "grpo"})
    programs = program_facts().engines.values()
    samplers = {name for program in programs for name in program.launches.rollout_engines}
    assert len(samplers) > 1
    offered = app.selectbox(key="_workload.rollout.engine").options
    assert set(offered) == {engine(name).title for name in samplers}


def test_the_plan_draws_what_a_run_loses() -> None:
    run = RUN | {"hardware.nodes": "2", "workload.spare_nodes": "1"}
    app = open_view(opened("plan.py", **run), "Whole run")
    (bars,) = figure(app, "losses")["data"]
    assert {"Restarts", "Work done again", "Checkpoints"} <= set(bars["y"])
    assert_says(app, "(goodput)", "A spare node is there with a probability of")


# The hardware


def test_own_hardware_makes_a_price() -> None:
    app = put(opened("hardware.py"), "_price_mode", "owned")
    before = float(query_of(app)["hardware.usd_per_device_hour"])
    put(app, "_own_capex_usd", "60,000")
    assert float(query_of(app)["hardware.usd_per_device_hour"]) > 1.8 * before
    assert "depreciation" in words(app)
    assert "above 0 and at most 30" in error(put(app, "_own_years", "0.0"))
    assert app.text_input(key="_own_years").value == "4"
    assert "hardware.usd_per_device_hour" not in query_of(put(app, "_price_mode", "offer"))


def test_this_machine_is_described_only_to_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable("folders"), raising=False)
    assert "does not describe its own" in words(opened("hardware.py"))
    monkeypatch.setenv(variable("folders"), "1")
    assert "identified by" in words(press(opened("hardware.py"), "detect"))
