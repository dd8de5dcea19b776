"""The wizard's pages, and what browser tests do on them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
TP4 = "vllm.bf16.bf16.tp4.pp1.dp2.ep1"
LLAMA_70B = "model=meta-llama%2FLlama-3.1-70B-Instruct"
TRAINING = "workload.kind=training&workload.tokens=1e10&hardware.per_node=8"
QUESTIONS = {
    "": "What do you want to run?",
    "objective": "What matters?",
    "hardware": "Where will it run?",
    "compare": "Which split?",
    "recipe": "Use this split",
}
NO_PLAYWRIGHT = "playwright is not installed: the browser tests did not run"
SIZE = "Which hardware, and how much?"
SIDE = "What differs?"
FORMATS = "Which format?"
OVER_TIME = "How many replicas, and when?"
PAGES = QUESTIONS | {
    "size": SIZE,
    "formats": FORMATS,
    "over_time": OVER_TIME,
    "side": SIDE,
    "measured": "Predicted against measured",
    "check": "Does my command work?",
}


STILL = """
const still = () => document.getAnimations().every(animation => animation.playState !== 'running')
"""
SETTLED = f"""question => {{
  {STILL}
  const titles = [...document.querySelectorAll('h1')].map(title => title.innerText.trim())
  const charts = [...document.querySelectorAll('[data-testid=stPlotlyChart]')]
  return document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'
    && titles.length === 1 && titles[0] === question
    && !document.querySelector('[data-testid=stSkeleton], [data-stale=true]')
    && charts.every(chart => !chart.checkVisibility() || chart.querySelector('.main-svg'))
    && still()
}}"""


def settled(page: Any, question: str) -> None:
    """Wait until a page stands still: its script has ended, all is drawn, nothing older is left.

    After a click wait first for what it does: until the server has heard of it, nothing moves.
    """
    page.get_by_role("heading", level=1, name=question).first.wait_for()
    page.wait_for_function(SETTLED, arg=question)


def unfold(page: Any, title: str) -> None:
    """Open a folded part, and wait until the page below has moved: a click meanwhile misses."""
    part = page.locator("details").filter(has=page.locator("summary").filter(has_text=title))
    part.locator("summary").click()
    moved = f"part => {{ {STILL} return part.open && still() }}"
    page.wait_for_function(moved, arg=part.element_handle())


def open_tab(page: Any, name: str, question: str) -> Any:
    """Open a tab and wait until its panel is drawn, by a run of the script; gives the panel."""
    page.get_by_role("tab", name=name, exact=True).click()
    page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()
    panel = page.get_by_role("tabpanel", name=name, exact=True)
    panel.locator("[data-testid=stElementContainer]").filter(visible=True).first.wait_for()
    settled(page, question)
    return panel


def query(page: Any) -> dict[str, str]:
    """What the address says."""
    address = page.evaluate("location.search").removeprefix("?")
    return {name: values[0] for name, values in parse_qs(address).items()}


def wait_for_query(page: Any, name: str, value: str | None) -> None:
    """Wait until the address says this."""
    says = "([name, value]) => new URLSearchParams(location.search).get(name) === value"
    page.wait_for_function(says, arg=[name, value])


def fits_sideways(page: Any) -> None:
    """Wait until nothing is wider than the window: charts take their width after they are drawn."""
    parts = "[...document.querySelectorAll('[data-testid=stMain], body')]"
    page.wait_for_function(f"() => {parts}.every(part => part.scrollWidth <= part.clientWidth + 1)")


def choose(page: Any, label: str, text: str, option: str) -> None:
    """Type into a select box and take an option."""
    box = page.get_by_role("combobox", name=label)
    box.click()
    box.fill(text)
    page.get_by_role("option", name=option).first.click()
