"""The wizard's pages, and what browser tests do on them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
TP4 = "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
LLAMA_70B = "model=meta-llama%2FLlama-3.1-70B-Instruct"
TRAINING = "workload.kind=training&workload.tokens=1e10"
QUESTIONS = {
    "": "What do you want to run?",
    "hardware": "Where will it run?",
    "objective": "What matters?",
    "compare": "Which split?",
    "recipe": "Take it",
}
PAGES = QUESTIONS | {"check": "Does my command work?"}


def settled(page: Any, question: str) -> None:
    """Wait for a page's title, for the script to have run to its end, and for all widgets to be drawn."""
    page.get_by_role("heading", level=1, name=question).wait_for()
    page.wait_for_function(
        "document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning' && !document.querySelector('[data-testid=stSkeleton]')"
    )


def unfold(page: Any, title: str) -> None:
    """Open a folded part, and wait until what lies below has moved out of its way: a click meanwhile would miss."""
    page.get_by_text(title).click()
    page.wait_for_function("document.getAnimations().every(each => each.playState !== 'running')")


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def wait_for_query(page: Any, name: str, value: str | None) -> None:
    for _ in range(100):
        if query(page).get(name) == value:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the address has {name}={query(page).get(name)!r}, not {value!r}: {page.url}")


def choose(page: Any, label: str, text: str, option: str) -> None:
    """Type into a select box and take an option."""
    box = page.get_by_role("combobox", name=label)
    box.click()
    box.fill(text)
    page.get_by_role("option", name=option).first.click()
