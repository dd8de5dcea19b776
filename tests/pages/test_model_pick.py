"""The search box of models: what Enter takes, what stands below, and what is said of nonsense."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import press, put, words
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE
from tests.fixtures.rows import table

APP = Path(ROOT) / "tests" / "fixtures" / "model_pick_app.py"


@pytest.fixture
def box() -> AppTest:
    return AppTest.from_file(str(APP), default_timeout=PATIENCE).run()


def labels(box: AppTest, start: str) -> list[str]:
    return [button.label for button in box.button if str(button.key).startswith(f"probe-{start}")]


def test_enter_takes_the_first_match_and_the_others_stand_below(box: AppTest) -> None:
    for typed, meant in table("model_search", "what_is_typed_finds_the_model_first"):
        if "/" not in typed:
            assert put(box, "probe-text", typed).code[0].value == meant, typed
    put(box, "probe-text", "llama 3.1")
    assert "picked meta-llama/Llama-3.1-8B-Instruct" in words(box)
    assert labels(box, "other")[0].startswith("**Llama 3.1 70B Instruct** · 70.6B · 128k · bf16")
    assert "Llama 3.1 8B Instruct is taken" in words(box).replace("*", "")
    press(box, "probe-other-0")
    assert box.code[0].value == "meta-llama/Llama-3.1-70B-Instruct"


def test_the_most_wanted_stand_in_a_list(box: AppTest) -> None:
    assert [label.split("**")[1] for label in labels(box, "popular")[:2]] == [
        "Llama 3.3 70B Instruct",
        "DeepSeek R1",
    ]
    assert labels(box, "other") == labels(box, "as-typed") == []
    assert press(box, "probe-popular-2").code[0].value == "openai/gpt-oss-120b"


def test_an_id_or_sizes_are_taken_as_they_stand_and_nonsense_changes_nothing(box: AppTest) -> None:
    sizes = "my-gpt [h=6144,L=44,heads=48,vocab=51200]"
    for typed in ("Qwen/Qwen3-8B", "someone/Qwen3-8B-AWQ", sizes):
        assert put(box, "probe-text", typed).code[0].value == typed
    put(box, "probe-text", "asdfghjkl")
    assert box.code[0].value == sizes
    assert "No model is called “asdfghjkl”" in words(box)
    # what the box takes for a search can still be meant as it stands; no folder is read here
    put(box, "probe-text", "deepseek/r1x")
    assert "No model is called “deepseek/r1x”" in words(box)
    assert labels(box, "as-typed")[0] == "Use “deepseek/r1x” by its name"
    assert labels(put(box, "probe-text", "qwen3 8b"), "as-typed") == []
