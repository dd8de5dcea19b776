"""The page that judges commands."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.fixtures.opening import LLAMA_70B, PAGES, opened, press, put, query_of, words


def judged(command: str, app: AppTest | None = None) -> AppTest:
    app = app or opened("check.py")
    assert not put(app, "command", command).exception
    return app


def test_a_command_is_judged() -> None:
    app = opened("check.py")
    assert "Paste a command" in words(app)
    for command, verdict in (
        ("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960", "It starts and sustains"),
        (f"vllm serve {LLAMA_70B} -tp 1", "It cannot start."),
        ("vllm serve Qwen/Qwen3-32B -tp 2 --tensor-paralel 4", "It cannot start."),
        ("vllm serve $MODEL", "It cannot be judged."),
        ("echo hello", "no known engine"),
    ):
        assert verdict in words(judged(command, app)), command


def test_a_stated_release_judges_the_options() -> None:
    option = """--attention-config '{"use_fp4_indexer_cache": false}'"""
    app = judged(f"vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192 {option}")
    assert "It cannot start." in words(app)
    assert "It starts" in words(put(app, "engine_version", "0.25.0"))
    assert "vllm 0.25.0" in words(app)
    assert "is not a release" in words(put(app, "engine_version", "newest"))
    assert not app.exception


def test_an_example_is_judged_and_opened_in_the_builder() -> None:
    app = opened("check.py")
    assert "devices are idle" in words(press(app, "example-0"))
    assert any("--tensor-parallel-size" in code.value for code in app.code)
    assert press(app, "to-builder").title[0].value == PAGES["compare.py"]
    assert query_of(app)["model"] == "Qwen/Qwen3-32B"


def test_both_memory_figures_are_explained_beside_each_other() -> None:
    app = judged(f"vllm serve {LLAMA_70B}")
    figures = {metric.label: metric.value for metric in app.metric}
    load, start = figures["Memory for the load"], figures["Memory to start"]
    assert load != start
    said = words(app)
    assert f"{load} would hold the load, 64 requests of 1,280 tokens, at once." in said
    assert f"{start} is what the engine needs to start" in said
    assert "one request of 131,072 tokens" in said
    assert f"needs {start} per GPU to start" in said  # the reason has the same figure
    assert "That is more than the 72.8 GiB that are usable." in said


def test_a_command_that_starts_and_queues_says_how_many_it_holds() -> None:
    said = words(judged(f"vllm serve {LLAMA_70B} -tp 2 --max-model-len 4096"))
    assert "that are usable. Of the load it holds" in said
    assert "the others wait." in said
