"""The session after its request became another one: whether its hardware is still to be found."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from tests.fixtures.opening import CHOSEN, LLAMA_70B, press
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE

APP = ROOT / "tests" / "fixtures" / "other_request_app.py"
FOUND = change(DEFAULT, {"model": LLAMA_70B, "hardware.device": "b200-sxm"})
"""What was found for the request before."""


def session(*, chosen: bool) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=PATIENCE)
    app.query_params.update({"model": LLAMA_70B} | (CHOSEN if chosen else {}))
    app.run()
    app.session_state["found"] = FOUND
    return app


def is_open(app: AppTest) -> bool:
    return bool(app.session_state["hardware-open"])


@pytest.mark.parametrize(
    ("chosen", "way", "opened"),
    [
        (False, "replace", False),
        (False, "train", True),
        (True, "train", False),
        (False, "choose", False),
        (True, "open", True),
        (False, "fewer", True),
        (True, "fewer", False),
        (False, "layout", False),
        (False, "over", True),
        (True, "over", True),
    ],
)
def test_what_was_found_is_forgotten_and_hardware_is_open_or_not(
    chosen: bool, way: str, opened: bool
) -> None:
    app = press(session(chosen=chosen), way)
    assert "found" not in app.session_state
    assert is_open(app) == opened
    assert ("hardware.device" in app.query_params) != opened


def test_an_edit_that_is_taken_back_forgets_what_was_found_for_it() -> None:
    app = press(session(chosen=False), "fewer")
    app.session_state["found"] = FOUND
    press(app, "back")
    assert "found" not in app.session_state
    assert is_open(app)
    assert app.session_state["request"].workload.concurrency == DEFAULT.workload.concurrency


def test_both_kinds_come_back_without_a_layout_that_was_chosen_on_other_hardware() -> None:
    for way_out, kept in (([], True), (["open"], False)):
        app = press(session(chosen=True), "layout")
        for way in ("train", *way_out, "serve"):
            press(app, way)
            assert "found" not in app.session_state
        assert is_open(app) != kept
        candidate = app.session_state["request"].candidate
        assert (candidate is not None and candidate.tp == 8) == kept
