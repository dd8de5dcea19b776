"""Time until the first page after the server's start, and until a plan on the command line.

python benchmarks/start.py [STARTS]      default 5 python benchmarks/start.py plan          the
command line alone, which needs no browser

Starts ``recipe serve`` anew each time and opens the first page in a real Chromium whose cache is
empty. The page is usable when its question and its first control are there and its script has run
to its end; it is whole when its chart is drawn too. A first start, which is told apart, has Python
compile everything, as it does once after an installation. Processor time until the page is whole is
told for server and browser: it is steadier than seconds where others use the machine.

A plan is measured as a whole process in turn with a plain loop: ``plan_ratio`` and
``plan_json_ratio`` are how much of the loop's processor time it takes (``process.py``).

Prints one JSON object and exits with 1 when the median time until usable is over LIMIT_S, or a
ratio over its limit. Needs playwright and a Chromium.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from process import ratios, too_slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIMIT_S = 2.5
USABLE = """
    document.querySelector('h1') && document.querySelector('[role=combobox]')
    && document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'
"""
PATIENCE_MS = 90_000


def start(browser: Browser, environment: dict[str, str]) -> dict[str, float]:
    """Seconds from a start until the port answers, the page is usable, and all of it is drawn;
    processor time until then.
    """
    from browsers import SETTLED, browser_processor_s, served

    counter = browser.new_browser_cdp_session()
    context = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    before = browser_processor_s(counter.send("SystemInfo.getProcessInfo"))
    with served(environment) as server:
        times = {"listening_s": time.perf_counter() - server.started}
        page.goto(server.base, wait_until="commit")
        for name, script in (("usable_s", USABLE), ("whole_s", SETTLED)):
            page.wait_for_function(script)
            times[name] = time.perf_counter() - server.started
        times["server_processor_s"] = server.processor_s()
        times["browser_processor_s"] = (
            browser_processor_s(counter.send("SystemInfo.getProcessInfo")) - before
        )
        context.close()
    return times


def page(starts: int) -> dict[str, Any]:
    """Medians over some starts of the server, and the first one."""
    from browsers import CHROMIUM
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as compiled,
        sync_playwright() as playwright,
    ):
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        environment["PYTHONPYCACHEPREFIX"] = compiled
        browser = playwright.chromium.launch(**CHROMIUM)
        first, *starts_s = [start(browser, environment) for _ in range(starts + 1)]
        browser.close()
    medians = {
        name: round(statistics.median(times[name] for times in starts_s), 2) for name in first
    }
    return {
        "starts": starts,
        **medians,
        "first_start": {name: round(value, 2) for name, value in first.items()},
    }


def main() -> None:
    count = sys.argv[1] if len(sys.argv) > 1 else "5"
    command_line = ratios()
    first_page = {} if count == "plan" else page(int(count))
    print(json.dumps(first_page | command_line, indent=1))
    raise SystemExit(first_page.get("usable_s", 0.0) > LIMIT_S or too_slow(command_line))


if __name__ == "__main__":
    main()
