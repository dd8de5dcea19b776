"""A real headless Chromium against the app started as a user starts it, for all browser tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from recipe_core.base.resources import root
from tests.fixtures.patience import PATIENCE, serving
from tests.fixtures.ports import free_port
from tests.fixtures.wizard import NO_PLAYWRIGHT

CHROMIUM = next(
    (
        path
        for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
        if Path(path).exists()
    ),
    None,
)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a free port, started from another folder: nothing depends on where one is."""
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    argv = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(root("app.py")),
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    argv += ["--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"]
    path = os.pathsep.join([str(root("app.py").parent), os.environ.get("PYTHONPATH", "")])
    with log.open("w") as output:
        server = subprocess.Popen(
            argv,
            cwd=log.parent,
            env=os.environ | {"PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        serving(f"http://127.0.0.1:{port}/_stcore/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright_api = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT)
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the browser tests did not run")
    playwright_api.expect.set_options(timeout=PATIENCE * 1000)
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE * 1000
        )
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages that fail the test on a console error or a request that leaves this machine.

    Takes the options of ``new_context``.
    """
    contexts: list[Any] = []
    errors: list[str] = []
    outside: list[str] = []

    def opened(**options: Any) -> Any:
        contexts.append(
            browser.new_context(
                **{"viewport": {"width": 1280, "height": 1000}, "accept_downloads": True} | options
            )
        )
        found = contexts[-1].new_page()
        found.set_default_timeout(PATIENCE * 1000)
        found.on(
            "console",
            lambda message: (
                errors.append(told(message))
                if message.type == "error" and not is_probe(message)
                else None
            ),
        )
        found.on("pageerror", lambda error: errors.append(str(error)))
        found.on(
            "request",
            lambda request: outside.append(request.url) if is_outside(request.url) else None,
        )
        return found

    yield opened
    for context in contexts:
        context.close()
    assert errors == []
    assert outside == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """One page in a window of usual size."""
    return open_page()


def told(message: Any) -> str:
    return f"{message.text} ({message.location.get('url')})"


def is_probe(message: Any) -> bool:
    """Streamlit looks for its server below a deep link's path first, and finds it at the root."""
    return "404" in message.text and "/_stcore/" in str(message.location.get("url"))


def is_outside(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in (
        "127.0.0.1",
        "localhost",
    )
