"""Pictures of every page from the running app: light and dark at 1440 pixels, light at 390, into
docs/images/.

python scripts/screenshots.py [FOLDER [NAME …]]      NAME as in compare-dark, model-narrow
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = "/usr/bin/chromium"
MAX_BYTES = 300_000
PATIENCE_MS = 90_000
LLAMA = (
    "v=1&model=meta-llama%2FLlama-3.3-70B-Instruct&hardware.device=h100-sxm"
    "&objective.optimize=cost&objective.limits.tpot_ms=40"
)
FOUND = LLAMA.replace("&hardware.device=h100-sxm", "")
TRAIN = (
    "v=1&model=meta-llama%2FLlama-3.1-70B-Instruct&workload.kind=training"
    "&workload.tokens=1e10&hardware.nodes=8"
)
SIDE_BY_SIDE = (
    "v=1&model=deepseek-ai%2FDeepSeek-V3&hardware.device=mi300x"
    "&options.hardware=%5B%7B%22device%22%3A%22h200-sxm%22%7D%5D"
)
OVER_TIME = (
    f"{LLAMA}&objective.limits.ttft_ms=2000"
    "&workload.over_time.shape=azure-conversation&workload.over_time.mean_rate=60"
    "&workload.over_time.days=7"
)
KEPT = (
    "v=1&kept=~1.ePmQfAf8i45WAoakArCk8DAEpfRqkkKd3mFDakCAvQjyX2aeArDc0VHISMxJU8hPUygBtvlI9SwRp"
    "RrR4WFCk_BAdwTO4ABGt68nMINGkBoGeDL6APud-LQA9DywgaOjAKwoSlPB9QqNEr3RQHk0FgAGETvM"
)
SHOTS = {
    "home": ("", "", None),
    "model": ("model", LLAMA, None),
    "traffic": ("traffic", LLAMA, None),
    "hardware": ("hardware", LLAMA, None),
    "plan": ("plan", LLAMA, None),
    "plan-found": ("plan", FOUND, None),
    "plan-clusters": ("plan", SIDE_BY_SIDE, None),
    "plan-training": ("plan", TRAIN, None),
    "plan-hardware": ("plan", f"{LLAMA}&lens=hardware", None),
    "plan-formats": ("plan", f"{LLAMA}&lens=formats", None),
    "plan-over-time": ("plan", f"{OVER_TIME}&lens=over-time", "Simulate"),
    "plan-why": ("plan", f"{LLAMA}&lens=why", "Time"),
    "plan-nothing": (
        "plan",
        "v=1&model=meta-llama%2FLlama-3.1-70B-Instruct&hardware.per_node=1",
        None,
    ),
    "ship": ("ship", LLAMA, None),
    "side": ("side", KEPT, None),
    "fleet": ("fleet", "", "Lose a node of own"),
    "check": ("check", LLAMA, "SGLang with a misspelt option"),
    "evidence": ("evidence", "", None),
    "glossary": ("plan", LLAMA, "Glossary"),
}
"""Path, query, and the view or example that is opened."""
DARK = tuple(name for name in SHOTS if name not in ("glossary", "plan-clusters"))
NARROW = DARK
BUTTONS = ("check", "fleet", "glossary", "plan-over-time")
"""Shots for which a button is pressed; for others a tab is opened."""
WIDE_PX, NARROW_PX = 1440, 390


@contextlib.contextmanager
def serve_app() -> Iterator[str]:
    """The app on a free port, as a user starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(ROOT / "app.py"),
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    server = subprocess.Popen(
        argv,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/_stcore/health", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(150):
        if server.poll() is not None:
            raise SystemExit("the app did not start")
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit("the app did not answer in 30 s")


def settled(page: Page) -> None:
    """Wait until the script has run and charts and tables are drawn."""
    page.get_by_role("heading", level=1).wait_for(timeout=PATIENCE_MS)
    page.wait_for_function(
        "() => document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'",
        timeout=PATIENCE_MS,
    )
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=stSkeleton]')", timeout=PATIENCE_MS
    )
    page.wait_for_timeout(1500)


def whole(page: Page, width: int) -> None:
    """Make the window as high as the page, which scrolls in a container of its own."""
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": width, "height": max(700, min(int(height), 4500))})
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    page.wait_for_timeout(900)


def shoot(browser: Browser, base: str, name: str, width: int, scheme: str) -> bytes:
    path, query, opened = SHOTS[name]
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{base}/{path}?{query}")
    settled(page)
    if name == "glossary":
        page.get_by_role("button", name="Menu", exact=True).click()
    if opened:
        page.get_by_role("button" if name in BUTTONS else "tab", name=opened, exact=True).click()
        settled(page)
    if name != "glossary":  # a dialog is as high as the window
        whole(page, width)
    picture = page.screenshot()
    context.close()
    return picture


def small(png: bytes) -> bytes:
    """Fewer colours: a screenshot of text and bars needs no more, and stays under the limit."""
    for colours in (256, 128, 64, 32):
        buffer = io.BytesIO()
        Image.open(io.BytesIO(png)).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(
            buffer, "PNG", optimize=True
        )
        if buffer.tell() < MAX_BYTES:
            return buffer.getvalue()
    raise SystemExit(f"a picture stays over {MAX_BYTES:,} bytes")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    shots = [(name, WIDE_PX, "light") for name in SHOTS] + [
        (name, WIDE_PX, "dark") for name in DARK
    ]
    shots += [(name, NARROW_PX, "light") for name in NARROW]
    only = sys.argv[2:]
    with serve_app() as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, width, scheme in shots:
            label = f"{name}-{scheme if width == WIDE_PX else 'narrow'}"
            if only and label not in only:
                continue
            picture = small(shoot(browser, base, name, width, scheme))
            (folder / f"{label}.png").write_bytes(picture)
            print(f"{label}.png {len(picture) / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
