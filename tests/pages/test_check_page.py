"""The page that judges commands."""

from __future__ import annotations

import pytest

from tests.pages.opening import PAGES, opened, query_of, words


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        (
            "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960",
            "It starts and sustains the load.",
        ),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 1", "It cannot start."),
        ("vllm serve Qwen/Qwen3-32B -tp 2 --tensor-paralel 4", "It cannot start."),
        ("vllm serve $MODEL", "It cannot be judged."),
        ("echo hello", "no known engine"),
    ],
)
def test_a_command_is_judged(command: str, verdict: str) -> None:
    app = opened("check.py")
    assert "Paste a command" in words(app)
    app.text_area(key="command").set_value(command).run()
    assert verdict in words(app)
    assert not app.exception


def test_an_example_is_judged_and_opened_in_the_builder() -> None:
    app = opened("check.py")
    app.button(key="example-0").click().run()
    assert "devices are idle" in words(app)
    assert any("--tensor-parallel-size" in code.value for code in app.code)
    app.button(key="to-builder").click().run()
    assert app.title[0].value == PAGES["compare.py"]
    assert query_of(app)["model"] == "Qwen/Qwen3-32B"
