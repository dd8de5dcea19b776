"""Costs of each page: bytes, requests, processor time of the server, controls in sight.

python benchmarks/pages.py [NAME …]      default: every page

Opens each page in a real Chromium whose cache is empty, at 1440 by 900 pixels, waits until the
server rests, and makes its typical edits: each five times with new values, of which the median
counts. Bytes are those on the wire, bodies alone. Processor time is that of the server with its
workers, so it says the same on a busy machine as on an idle one; a page is opened once before,
since a first visit also imports and reads. Of an edit of the plan it holds the runners-up that
follow the answer. Memory is what the server and its workers hold resident once all pages were open,
each process with what it shares. Prints one JSON object and exits with 1 when a page is over a
limit in its entry. Needs playwright and a Chromium.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from browsers import CHROMIUM, SETTLED, Server, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLAIN_BYTES, CHART_BYTES = 1_300_000, 4_000_000
"""The most bytes of a page, and of one with a chart or a table."""
LLAMA = (
    "v=1&model=meta-llama%2FLlama-3.1-70B-Instruct&hardware.device=h100-sxm"
    "&objective.limits.tpot_ms=40"
)
CHAT = (
    "v=1&model=meta-llama%2FLlama-3.3-70B-Instruct&workload.mode=open&workload.request_rate=2"
    "&workload.max_context=16384&objective.limits.ttft_ms=2000&objective.limits.tpot_ms=50"
)
"""Chats at a rate, for which hardware is to be found unless it is stated."""
WEEK = (
    f"{LLAMA}&objective.limits.ttft_ms=2000&workload.over_time.shape=azure-conversation"
    "&workload.over_time.mean_rate=60&workload.over_time.days=7"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit: a box that takes one text after another, or switches that are turned on.

    Attributes:
        label: of the box; empty for switches.
        texts: what is typed, or the labels of the switches; the first is not counted.
        part: the part of the request that has to be opened for it; empty where it is in sight.
        most_s: the most processor time; None is no limit.
    """

    label: str
    texts: tuple[str, ...]
    part: str = ""
    most_s: float | None = None


@dataclass(frozen=True, slots=True)
class Visit:
    """A page: its path and query, the most bytes, and edits by what is edited."""

    path: str
    query: str = ""
    most_bytes: int = PLAIN_BYTES
    edits: Mapping[str, Edit] = field(default_factory=dict)


ANSWER_S, SIZING_S = 0.25, 0.8
"""The most processor time of an edit of the answer, and of one that sizes every device."""
RATES = ("2.5", "3", "3.5", "4", "2.25", "2.75")
LIMITS = ("49", "48", "47", "46", "45", "44")
SWITCHES = ("Older prices too", "Market places", "A replica over several machines")
RATE, LIMIT = "Requests a second", "Time per output token, at most (ms)"


def typical_edits(most_s: float) -> dict[str, Edit]:
    """Another rate of arrivals and another limit, at the chips of the plan."""
    return {
        "rate": Edit(RATE, RATES, "Traffic", most_s),
        "limit": Edit(LIMIT, LIMITS, "Limits", most_s),
    }


PAGES = {
    "start": Visit("/"),
    "traffic": Visit(
        "/traffic",
        LLAMA,
        edits={"length": Edit("Typical input (tokens)", ("2000", "1900"), "Lengths and more")},
    ),
    "hardware": Visit("/hardware", LLAMA),
    "plan": Visit(
        "/plan",
        f"{CHAT}&hardware.device=h100-sxm",
        CHART_BYTES,
        edits=typical_edits(ANSWER_S),
    ),
    "plan, any load": Visit(
        "/plan",
        LLAMA,
        CHART_BYTES,
        edits={"limit": Edit(LIMIT, LIMITS, "Limits", ANSWER_S)},
    ),
    "ship": Visit("/ship", LLAMA, CHART_BYTES),
    "lens hardware": Visit(
        "/plan",
        f"{CHAT}&lens=hardware",
        CHART_BYTES,
        edits=typical_edits(SIZING_S) | {"filter": Edit("", SWITCHES, "Hardware", SIZING_S)},
    ),
    "lens formats": Visit("/plan", f"{LLAMA}&lens=formats", CHART_BYTES),
    "lens over time": Visit("/plan", f"{WEEK}&lens=over-time", CHART_BYTES),
    "side": Visit("/side", LLAMA),
    "fleet": Visit("/fleet", "", CHART_BYTES),
    "check": Visit("/check", LLAMA),
    "evidence": Visit("/evidence", "", CHART_BYTES),
}
"""Every page by its name."""

PATIENCE_MS = 120_000
RESTS_S = 1.0
"""A server that took no processor time for so long rests."""
IN_SIGHT = """() => [...document.querySelectorAll(
    'a[href], button, summary, input, select, textarea, ' +
    '[role=combobox], [role=slider], [role=tab]')]
  .filter(control => {
    const box = control.getBoundingClientRect()
    return control.checkVisibility({visibilityProperty: true, opacityProperty: true})
      && box.width > 1 && box.height > 1
      && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
      && !control.parentElement.closest('button, a[href], [role=combobox], [role=slider]')
      && !control.matches('[data-testid=stSelectbox] button')
  }).length"""
"""Controls of the first screen; what is a part of another, as a list's arrow, counts once."""


def rested(server: Server) -> float:
    """Wait until the server and its workers take no processor time; what they took so far (s)."""
    spent = server.family_processor_s()
    while True:
        time.sleep(RESTS_S)
        before, spent = spent, server.family_processor_s()
        if spent - before < 0.02 * RESTS_S:
            return spent


@contextmanager
def watched(page: Page) -> Iterator[dict[str, Any]]:
    """Count what a page is sent while it is open."""
    counts: dict[str, Any] = {"bytes": 0, "requests": 0, "websocket_bytes": 0}
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def add(name: str, value: int) -> None:
        counts[name] += value

    session.on("Network.dataReceived", lambda part: add("bytes", part["encodedDataLength"]))
    session.on("Network.requestWillBeSent", lambda _: add("requests", 1))
    session.on(
        "Network.webSocketFrameReceived",
        lambda frame: add("websocket_bytes", len(frame["response"]["payloadData"])),
    )
    yield counts
    session.detach()


@contextmanager
def opened(browser: Browser) -> Iterator[Page]:
    """A page of a browser whose cache is empty."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    context.close()


def visited(page: Page, server: Server, visit: Visit) -> dict[str, Any]:
    """Open a page, and wait until all that it needs has come."""
    before = rested(server)
    with watched(page) as counts:
        page.goto(f"{server.base}{visit.path}?{visit.query}")
        page.get_by_role("heading", level=1).first.wait_for()
        page.wait_for_function(SETTLED)
        spent = rested(server)
        page.wait_for_function(SETTLED)
        answer = dict(counts)
    answer["open_processor_s"] = round(spent - before, 2)
    answer["controls_in_sight"] = page.evaluate(IN_SIGHT)
    return answer


def edit_cost(page: Page, server: Server, edit: Edit) -> float:
    """Median processor time of an edit (s) after a first one, whose code is then loaded.

    Raises:
        TimeoutError: where the page has no such box.
    """
    part = page.locator("summary").filter(has_text=edit.part).first if edit.part else None
    if part is not None:
        part.click()
    costs = []
    for text in edit.texts:
        changed = page.locator("label").filter(has_text=text)
        if edit.label:
            changed = page.get_by_role("textbox", name=edit.label, exact=True)
        changed = changed.filter(visible=True).first
        changed.wait_for()
        before, address = rested(server), page.url
        if edit.label:
            changed.fill(text)
            changed.press("Enter")
        else:
            changed.click()
        # a page writes its address when its answer is there: a busy machine may seem to rest
        page.wait_for_function("address => location.href !== address", arg=address)
        page.wait_for_function(SETTLED)
        costs.append(rested(server) - before)
        page.wait_for_function(SETTLED)
    if part is not None:
        part.click()
        rested(server)
    return round(statistics.median(costs[1:]), 2)


def is_over(visit: Visit, answer: Mapping[str, Any]) -> bool:
    """Return whether a page is over one of its limits."""
    slow = [
        edit.most_s is not None and answer["edits_processor_s"][name] > edit.most_s
        for name, edit in visit.edits.items()
    ]
    return answer["bytes"] > visit.most_bytes or any(slow)


def main() -> None:
    from playwright.sync_api import sync_playwright

    names, answer = sys.argv[1:] or list(PAGES), {}
    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        for name in names:
            with opened(browser) as page:
                first = visited(page, server, PAGES[name])
            with opened(browser) as page:
                answer[name] = visited(page, server, PAGES[name])
                answer[name]["first_open_processor_s"] = first["open_processor_s"]
                answer[name]["edits_processor_s"] = {
                    edit_name: edit_cost(page, server, edit)
                    for edit_name, edit in PAGES[name].edits.items()
                }
            print(name, answer[name], file=sys.stderr)
        resident = server.resident_bytes()
        browser.close()
    resident_mib = {process: round(size / 2**20) for process, size in resident.items()}
    print(json.dumps({**answer, "resident_mib": resident_mib}, indent=1))
    raise SystemExit(any(is_over(PAGES[name], answer[name]) for name in names))


if __name__ == "__main__":
    main()
