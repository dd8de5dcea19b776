"""Time and clicks from the first page to a bundle, for every case of the gallery.

python benchmarks/walk.py [NAME …]      default: every case

Opens the first page in a real Chromium, clicks the case, goes on to the recipe as soon as the
comparison is drawn, and downloads the bundle. Prints one JSON object and exits with 1 when a case
takes more than MOST_CLICKS clicks or LIMIT_S seconds. Needs playwright and a Chromium.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from browsers import CHROMIUM, SETTLED, served

from recipe_core.request.presets import examples

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST_CLICKS = 5
LIMIT_S = 90.0
PATIENCE_MS = 300_000
STEPS = (("link", None, "Which split?"), ("button", "Next", "Use this split"))
"""What is clicked, in order, and the question of the page that it opens; None: the case."""


def walked(page: Page, base: str, title: str) -> dict[str, Any]:
    """Seconds and clicks from the first page to the file."""
    page.goto(base)
    page.get_by_role("heading", level=1, name="What do you want to run?").wait_for()
    page.wait_for_function(SETTLED)
    start, clicks = time.perf_counter(), 0
    for role, name, question in STEPS:
        page.get_by_role(role, name=name or title).first.click()  # type: ignore[arg-type]
        clicks += 1
        page.get_by_role("heading", level=1, name=question).wait_for()
        page.wait_for_function(SETTLED)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download bundle").click()
        clicks += 1
    waiting.value.path()
    return {"clicks": clicks, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    from playwright.sync_api import sync_playwright

    names = sys.argv[1:] or list(examples())
    answer = {}
    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        for name in names:
            context = browser.new_context(
                viewport={"width": 1440, "height": 900}, bypass_csp=True, accept_downloads=True
            )
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            answer[name] = walked(page, server.base, examples()[name].title)
            context.close()
        browser.close()
    print(json.dumps(answer, indent=1))
    over = [task for task in answer.values() if task["clicks"] > MOST_CLICKS]
    raise SystemExit(bool(over or [task for task in answer.values() if task["seconds"] > LIMIT_S]))


if __name__ == "__main__":
    main()
