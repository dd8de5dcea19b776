"""The frame around the pages in a real Chromium, while one page takes the place of another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.wizard import LLAMA_70B, PAGES, QUESTIONS, settled

pytestmark = pytest.mark.browser

LINKS = {"Compare": "compare", "Check a command": "check", "Objective": "objective", "Model": ""}
COUNT_STEP_BUTTONS = """
window.most = {Next: 0, Back: 0}
new MutationObserver(() => {
  const buttons = [...document.querySelectorAll('button')]
    .filter(button => button.checkVisibility())
  const count = name => buttons.filter(button => button.innerText.includes(name)).length
  for (const name in window.most)
    window.most[name] = Math.max(window.most[name], count(name))
}).observe(document, {subtree: true, childList: true, attributes: true, characterData: true})
"""


def test_no_change_shows_a_button_of_the_frame_twice(page: Any, address: str) -> None:
    """Counted at every change of the document, from a plan that no other test asks for.

    The run that makes a plan draws more than the next one, which a step then cuts short.
    """
    page.add_init_script(COUNT_STEP_BUTTONS)
    page.goto(f"{address}/?{LLAMA_70B}&workload.concurrency=97")
    settled(page, QUESTIONS[""])
    for question in list(QUESTIONS.values())[1:]:
        page.get_by_role("button", name="Next").click()
        settled(page, question)
    for question in list(QUESTIONS.values())[-2::-1]:
        page.get_by_role("button", name="Back").click()
        settled(page, question)
    for name, step in LINKS.items():
        page.get_by_role("link", name=name).first.click()
        settled(page, PAGES[step])
    assert page.evaluate("window.most") == {"Next": 1, "Back": 1}
