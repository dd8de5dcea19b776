"""How long interactions take while several browsers use one server: ten sessions in one real headless Chromium.

python benchmarks/sessions.py [SESSIONS] [INTERACTIONS]      defaults 10 and 6

Every session opens the comparison of a request of its own, then moves between axes, views and pages, all at the same time. An interaction
takes from the click until the script has run and what it sent is drawn; between two of them a reader looks for THINK_S. Prints one JSON
object with the median and the 95th percentile, and exits with 1 when the latter is over LIMIT_S. Needs playwright and a Chromium.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from playwright.async_api import Page, async_playwright

LIMIT_S = 1.0
THINK_S = 3.0
MODELS = (
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-32B",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-3.1-8B-Instruct",
)
VIEWS = ("Time", "Load", "Cost", "Sensitivity", "Degrees", "Arithmetic", "Memory")
IDLE = "document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'"


def screenshots() -> ModuleType:
    """The script that starts the app as a user does."""
    path = Path(__file__).resolve().parent.parent / "scripts" / "screenshots.py"
    spec = importlib.util.spec_from_file_location("screenshots", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def clicked(page: Page, view: str) -> float:
    """Seconds from a click on a tab until its panel is drawn and the script is done."""
    start = time.perf_counter()
    await page.get_by_role("tab", name=view).click()
    panel = page.get_by_role("tabpanel").filter(visible=True)
    await panel.locator(".js-plotly-plot, table").first.wait_for()
    await page.wait_for_function(IDLE)
    return time.perf_counter() - start


async def session(browser: Any, base: str, n: int, interactions: int) -> list[float]:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    page.set_default_timeout(60_000)
    await page.goto(f"{base}/compare?model={MODELS[n % len(MODELS)]}&workload.concurrency={32 + n}")
    await page.get_by_role("heading", level=1, name="Which split?").wait_for()
    await page.locator(".js-plotly-plot").first.wait_for()
    await page.wait_for_function(IDLE)
    found = []
    for k in range(interactions):
        await asyncio.sleep(THINK_S * random.uniform(0.5, 1.5))
        found.append(await clicked(page, VIEWS[(n + k) % len(VIEWS)]))
    await context.close()
    return found


async def measure(base: str, chromium: str, sessions: int, interactions: int) -> list[float]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        every = await asyncio.gather(*(session(browser, base, n, interactions) for n in range(sessions)))
        await browser.close()
    return [seconds for found in every for seconds in found]


def main() -> None:
    sessions, interactions = (int(sys.argv[k]) if len(sys.argv) > k else usual for k, usual in ((1, 10), (2, 6)))
    module = screenshots()
    with module.served() as base:
        found = sorted(asyncio.run(measure(base, module.CHROMIUM, sessions, interactions)))
    p95 = found[int(0.95 * (len(found) - 1))]
    answer = {"sessions": sessions, "interactions": len(found), "median_s": round(statistics.median(found), 3), "p95_s": round(p95, 3)}
    print(json.dumps(answer))
    raise SystemExit(p95 > LIMIT_S)


if __name__ == "__main__":
    main()
