"""Every page held against axe-core, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.wizard import LLAMA_70B, PAGES, TP4, TP8, TRAINING, open_tab, settled

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing: not tested"
)

pytestmark = pytest.mark.browser

SERIOUS = ("serious", "critical")
STATES = {
    "serving": f"{LLAMA_70B}&objective.limits.tpot_ms=40&pins={TP8},{TP4}",
    "training": TRAINING,
    "nothing-fits": f"{LLAMA_70B}&hardware.per_node=1",
}


def violations(page: Any) -> list[str]:
    """Serious violations, each with the first place where it is."""
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in SERIOUS
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_no_page_has_a_serious_violation(
    open_page: Callable[..., Any], address: str, state: str, scheme: str
) -> None:
    page = open_page(color_scheme=scheme)
    found = {}
    for step, question in PAGES.items():
        page.goto(f"{address}/{step}?{STATES[state]}")
        settled(page, question)
        if step == "check":
            page.get_by_role("button", name="SGLang").click()
            page.get_by_text("It cannot start.").wait_for()
            settled(page, question)
        found[step] = violations(page)
    assert not any(found.values()), found


@pytest.mark.parametrize("view", ["Time", "Arithmetic", "Why not?"])
def test_no_view_of_a_split_has_a_serious_violation(page: Any, address: str, view: str) -> None:
    page.goto(f"{address}/compare?{STATES['serving']}")
    settled(page, PAGES["compare"])
    open_tab(page, view, PAGES["compare"])
    assert violations(page) == []
