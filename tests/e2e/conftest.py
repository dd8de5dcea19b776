"""A real headless Chromium against the app started as a user starts it, for all browser tests."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fixtures.engines import demo_model
from tests.fixtures.patience import PATIENCE
from tests.fixtures.serve import recipe_serve
from tests.fixtures.wizard import NO_PLAYWRIGHT

BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
CHROMIUM = next((path for path in BROWSERS if Path(path).exists()), None)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with recipe_serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def address(server):
    return server.url


@pytest.fixture(scope="session")
def untrained_model(tmp_path_factory):
    return demo_model(tmp_path_factory.mktemp("untrained") / "model")


@pytest.fixture(scope="session")
def browser():
    playwright_api = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT)
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the browser tests did not run")
    playwright_api.expect.set_options(timeout=PATIENCE * 1000)
    with playwright_api.sync_playwright() as playwright:
        options = {"executable_path": CHROMIUM, "timeout": PATIENCE * 1000}
        found = playwright.chromium.launch(args=["--no-sandbox"], **options)
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """Opens pages, with options of a context, that fail on errors and on requests to elsewhere."""
    contexts, errors, outside = [], [], []

    def note(message):
        url = str(message.location.get("url"))
        # Streamlit looks for its server below a deep link's path first, and finds it at the root.
        probe = "404" in message.text and "/_stcore/" in url
        if message.type == "error" and not probe:
            errors.append(f"{message.text} ({url})")

    def go(request):
        parts = urlsplit(request.url)
        local = parts.hostname in ("127.0.0.1", "localhost")
        if parts.scheme in ("http", "https", "ws", "wss") and not local:
            outside.append(request.url)

    def opened(**options):
        usual = {"viewport": {"width": 1280, "height": 1000}, "accept_downloads": True}
        contexts.append(browser.new_context(**(usual | options)))
        found = contexts[-1].new_page()
        found.set_default_timeout(PATIENCE * 1000)
        found.on("console", note)
        found.on("pageerror", lambda error: errors.append(str(error)))
        found.on("request", go)
        return found

    yield opened
    for context in contexts:
        context.close()
    assert (errors, outside) == ([], [])


@pytest.fixture
def page(open_page):
    return open_page()
