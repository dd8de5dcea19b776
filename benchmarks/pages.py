"""Costs of each page: bytes, requests, processor time of the server, controls in sight.

python benchmarks/pages.py [NAME …]      default: every page

Opens each page in a real Chromium whose cache is empty, at 1440 by 900 pixels, waits until the
server rests, and makes one typical edit. Bytes are those on the wire, bodies alone. Processor time
is that of the server with its workers, so it says the same on a busy machine as on an idle one; a
page is opened once before, since a first visit also imports and reads. Prints one JSON object and
exits with 1 when a page is over a limit in its entry. Needs playwright and a Chromium.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
WEEK = (
    f"{LLAMA}&objective.limits.ttft_ms=2000&workload.over_time.shape=azure-conversation"
    "&workload.over_time.mean_rate=60&workload.over_time.days=7"
)


@dataclass(frozen=True, slots=True)
class Visit:
    """A page: its path and query, the most bytes, and the box that is edited with its new text."""

    path: str
    query: str = ""
    most_bytes: int = PLAIN_BYTES
    edit: tuple[str, str] | None = None


PAGES = {
    "start": Visit("/"),
    "traffic": Visit("/traffic", LLAMA, edit=("Typical input (tokens)", "2000")),
    "hardware": Visit("/hardware", LLAMA),
    "plan": Visit("/plan", LLAMA, CHART_BYTES),
    "ship": Visit("/ship", LLAMA, CHART_BYTES),
    "lens hardware": Visit("/plan", f"{LLAMA}&lens=hardware", CHART_BYTES),
    "lens formats": Visit("/plan", f"{LLAMA}&lens=formats", CHART_BYTES),
    "lens over time": Visit("/plan", f"{WEEK}&lens=over-time", CHART_BYTES),
    "side": Visit("/side", LLAMA),
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


def visited(browser: Browser, server: Server, visit: Visit) -> dict[str, Any]:
    """Open a page with an empty cache, and edit it."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    before = rested(server)
    with watched(page) as counts:
        page.goto(f"{server.base}{visit.path}?{visit.query}")
        page.get_by_role("heading", level=1).first.wait_for()
        page.wait_for_function(SETTLED)
        opened = rested(server)
        page.wait_for_function(SETTLED)
        answer = dict(counts)
    answer["open_processor_s"] = round(opened - before, 2)
    answer["controls_in_sight"] = page.evaluate(IN_SIGHT)
    answer["edit_processor_s"] = edit_cost(page, server, visit.edit)
    context.close()
    return answer


def edit_cost(page: Page, server: Server, edit: tuple[str, str] | None) -> float | None:
    """Processor time of one edit (s); None where the page has no such box."""
    box = page.get_by_role("textbox", name=edit[0]).first if edit else None
    if edit is None or box is None or not box.count():
        return None
    before = rested(server)
    box.fill(edit[1])
    box.press("Enter")
    page.wait_for_function(SETTLED)
    return round(rested(server) - before, 2)


def main() -> None:
    from playwright.sync_api import sync_playwright

    names, answer = sys.argv[1:] or list(PAGES), {}
    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        for name in names:
            first = visited(browser, server, PAGES[name])
            answer[name] = visited(browser, server, PAGES[name])
            answer[name]["first_open_processor_s"] = first["open_processor_s"]
            print(name, answer[name], file=sys.stderr)
        browser.close()
    print(json.dumps(answer, indent=1))
    raise SystemExit(any(answer[name]["bytes"] > PAGES[name].most_bytes for name in names))


if __name__ == "__main__":
    main()
