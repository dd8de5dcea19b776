"""Times of interactions while ten sessions in one headless Chromium use one server.

python benchmarks/sessions.py [SESSIONS] [INTERACTIONS] [THINK_S]      defaults 10, 30 and 7

Every session opens the comparison of a request of its own, all at the same time. When all are open,
each goes its round over views of a split, an axis of the tradeoff and pages. An interaction takes
from the click until the script has run and all that it sent is drawn; between two of them a reader
looks for THINK_S on average, drawn between half and one and a half of it: 7 s is what TPC-W has its
emulated browsers think (TPC Benchmark W 1.8, 2002), in visits of 15 minutes, of which 30
interactions are four. Opening is told apart: there a browser loads ten megabytes of scripts rather
than the answer to a click. So is the first round, in which a browser meets each view and page for
the first time and compiles what draws it; it counts among all. Browsers run on the same processors
as the server, so processor time is told for both.

Prints one JSON object with the median and the 95th percentile of all interactions, of the first
round and by kind, and exits with 1 when the 95th percentile of all is over LIMIT_S. Needs
playwright and a Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from browsers import CHROMIUM, SETTLED, Server, browser_processor_s, quantile, served
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import TimeoutError as PageTimeout

LIMIT_S = 1.0
THINK_S = 7.0
PATIENCE_MS = 180_000
LOST_MS = 15_000
"""After so long a click counts as lost: it fell between two drawings of what was clicked."""
POLL_MS = 20
"""How often a page is asked; at every frame, as Playwright does by itself, would have it draw
frames for the asking.
"""
MODELS = (
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-32B",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-3.1-8B-Instruct",
)
QUESTIONS = {"Objective": "What matters?", "Compare": "Which split?", "Recipe": "Use this split"}
ROUND = (
    *(("view", name) for name in ("Time", "Load", "Cost", "Sensitivity", "Arithmetic", "Memory")),
    ("axis", "Across"),
    ("page", "Recipe"),
    ("page", "Compare"),
)
"""What a session does in turn; each starts at a place of its own."""
PANEL = f"""name => {{
    const tab = [...document.querySelectorAll('[role=tab]')]
        .find(tab => tab.textContent.trim() === name)
    const panel = document.getElementById(tab.getAttribute('aria-controls'))
    return tab.ariaSelected === 'true' && panel?.querySelector('.main-svg, table') && {SETTLED}
}}"""
AXIS = f"""old => {{
    const title = document.querySelector('.st-key-frontier .xtitle')?.textContent
    return title && title !== old && {SETTLED}
}}"""
HEADING = f"""title => document.querySelector('h1')?.textContent === title && {SETTLED}"""


async def clicked(page: Page, place: Any, predicate: str, argument: str) -> float:
    """Seconds from a click on a place until the page is as it is meant to be; what came to nothing
    is clicked again, as a reader would.
    """
    await place.scroll_into_view_if_needed()
    start = time.perf_counter()
    for patience_ms in (LOST_MS, PATIENCE_MS):
        box = await place.bounding_box()
        await page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        with contextlib.suppress(PageTimeout):
            await page.wait_for_function(
                predicate, arg=argument, polling=POLL_MS, timeout=patience_ms
            )
            return time.perf_counter() - start
    raise SystemExit(f"a click on {argument!r} came to nothing twice")


async def view(page: Page, name: str) -> float:
    """Another view of the split that is looked at."""
    return await clicked(page, page.locator("[role=tab]", has_text=name).first, PANEL, name)


async def axis(page: Page, label: str) -> float:
    """Another measure along an axis of the tradeoff."""
    box = page.get_by_role("combobox", name=label)
    now = await box.input_value()
    await box.scroll_into_view_if_needed()
    await asyncio.sleep(0.3)  # a list that opens while the page scrolls is closed by it
    await box.click()
    await page.get_by_role("option").nth(3).wait_for()
    measures = [name for name in await page.get_by_role("option").all_inner_texts() if name != now]
    option = page.get_by_role("option", name=random.choice(measures[:5]), exact=True)
    return await clicked(
        page, option, AXIS, await page.locator(".st-key-frontier .xtitle").text_content()
    )


async def turned(page: Page, name: str) -> float:
    """Another page of the builder."""
    return await clicked(
        page, page.locator("header a", has_text=name).first, HEADING, QUESTIONS[name]
    )


MOVES: dict[str, Callable[[Page, str], Awaitable[float]]] = {
    "view": view,
    "axis": axis,
    "page": turned,
}


class Run:
    """Sessions that are open at the same time, and what was measured of them."""

    def __init__(
        self, server: Server, browser: Browser, sessions: int, interactions: int, think_s: float
    ) -> None:
        self.server, self.browser = server, browser
        self.sessions, self.interactions, self.think_s = sessions, interactions, think_s
        self.opened: list[float] = []
        self.found: list[tuple[str, bool, float]] = []
        self.together = asyncio.Barrier(sessions)

    async def __call__(self) -> dict[str, Any]:
        """All sessions; what they took."""
        self.counter = await self.browser.new_browser_cdp_session()
        await asyncio.gather(*(self.session(n) for n in range(self.sessions)))
        durations = [seconds for *_, seconds in self.found]
        server_s, browser_s = (
            round((after - before) / len(durations), 3)
            for before, after in zip(self.before, self.after, strict=True)
        )
        kinds = {
            kind: [seconds for move, _, seconds in self.found if move == kind] for kind in MOVES
        }
        return {
            "sessions": self.sessions,
            "think_s": self.think_s,
            "open": describe_times(self.opened),
            "interactions": describe_times(durations),
            "first_round": describe_times([seconds for _, first, seconds in self.found if first]),
            **{kind: describe_times(some) for kind, some in kinds.items() if some},
            "processor_s_per_interaction": {"server": server_s, "browsers": browser_s},
        }

    async def used(self) -> tuple[float, float]:
        """Processor time of the server and of all browsers so far (seconds)."""
        return self.server.processor_s(), browser_processor_s(
            await self.counter.send("SystemInfo.getProcessInfo")
        )

    async def session(self, n: int) -> None:
        """One reader, whose round starts where no neighbour's does."""
        context = await self.browser.new_context(
            viewport={"width": 1280, "height": 900}, bypass_csp=True
        )
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        start = time.perf_counter()
        query = f"model={MODELS[n % len(MODELS)]}&workload.concurrency={32 + n}"
        await page.goto(f"{self.server.base}/compare?{query}")
        await page.wait_for_function(HEADING, arg=QUESTIONS["Compare"], polling=POLL_MS)
        self.opened.append(time.perf_counter() - start)
        if await self.together.wait() == 0:
            self.before = await self.used()
        for k in range(self.interactions):
            await asyncio.sleep(self.think_s * random.uniform(0.5, 1.5))
            kind, name = self.move(n, k)
            self.found.append((kind, k < len(ROUND), await MOVES[kind](page, name)))
        if (
            await self.together.wait() == 0
        ):  # while all are still open: a closed page takes its figures with it
            self.after = await self.used()
        await self.together.wait()
        await context.close()

    def move(self, n: int, k: int) -> tuple[str, str]:
        """The k-th move of a session.

        None starts with the last of the round, which leads back from another page.
        """
        return ROUND[((3 * n) % (len(ROUND) - 1) + k) % len(ROUND)]


def describe_times(values: list[float]) -> dict[str, float]:
    """Return how many, the usual one and a slow one (seconds)."""
    return {"n": len(values), "median_s": quantile(values, 0.5), "p95_s": quantile(values, 0.95)}


async def measure(
    server: Server, sessions: int, interactions: int, think_s: float
) -> dict[str, Any]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**CHROMIUM)
        answer = await Run(server, browser, sessions, interactions, think_s)()
        await browser.close()
    return answer


def main() -> None:
    sessions, interactions = (
        int(sys.argv[k]) if len(sys.argv) > k else usual for k, usual in ((1, 10), (2, 30))
    )
    think_s = float(sys.argv[3]) if len(sys.argv) > 3 else THINK_S
    with served() as server:
        answer = asyncio.run(measure(server, sessions, interactions, think_s))
    print(json.dumps(answer, indent=1))
    raise SystemExit(answer["interactions"]["p95_s"] > LIMIT_S)


if __name__ == "__main__":
    main()
