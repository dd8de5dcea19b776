"""A server behind a token in a real Chromium, and what it lets nobody do."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from recipe_core.base.resources import root
from recipe_core.doors.settings import variable
from tests.fixtures.patience import PATIENCE, serving
from tests.fixtures.ports import free_port
from tests.fixtures.wizard import QUESTIONS, settled, unfold

pytestmark = pytest.mark.browser

TOKEN = "a-token-of-twenty-chars"
NETWORK = "0.0.0.0"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that the network may reach, with a token."""
    port, folder = free_port(), tmp_path_factory.mktemp("guarded")
    words = [sys.executable, "-m", "recipe_core", "serve", "--host", NETWORK, "--port", str(port)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            words,
            cwd=folder,
            env=os.environ | {variable("token"): TOKEN},
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            serving(f"http://127.0.0.1:{port}/_stcore/health", process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert TOKEN not in (folder / "log").read_text()


def test_a_reader_signs_in_and_comes_to_the_page_that_was_asked_for(
    page: Any, guarded: str
) -> None:
    page.goto(f"{guarded}/hardware")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    settled(page, QUESTIONS["hardware"])
    assert page.url.startswith(f"{guarded}/hardware")
    assert TOKEN not in page.url
    page.reload()
    settled(page, QUESTIONS["hardware"])


def test_the_form_can_be_used_by_everybody(open_page: Any, guarded: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme, bypass_csp=True)  # the checker brings its own script
        page.goto(guarded)
        page.get_by_role("button", name="Sign in").wait_for()
        assert axe.Axe().run(page).response["violations"] == []


def test_the_pages_socket_stays_shut_without_the_form(guarded: str, address: str) -> None:
    def handshake(server: str, **headers: str) -> int:
        parts = urlsplit(server)
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        try:
            connection.request("GET", "/_stcore/stream", headers=upgrade | key | headers)
            return connection.getresponse().status
        finally:
            connection.close()

    assert handshake(address) == 101
    assert handshake(address, Host="evil.example", Origin="http://evil.example") == 403
    assert handshake(guarded) == 403


def test_the_network_is_not_served_without_a_token(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "recipe_core", "serve", "--host", NETWORK]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RECIPE_BUILDER_")}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert variable("token") in done.stderr
    assert "--no-auth" in done.stderr


def test_a_large_upload_is_refused_by_the_server_too(page: Any, address: str) -> None:
    """The widget keeps to the limit in the browser; here somebody else sends the file."""
    page.goto(address)
    settled(page, QUESTIONS[""])
    unfold(page, "Not in the list?")
    with page.expect_request(lambda request: "/upload_file/" in request.url) as sent:
        page.locator("input[type=file]").first.set_input_files(
            {"name": "config.json", "mimeType": "application/json", "buffer": b"{}"}
        )
    target, headers = sent.value.url, sent.value.all_headers()
    token = {"X-Xsrftoken": headers["x-xsrftoken"]} if "x-xsrftoken" in headers else {}

    def put(name: str, size: int) -> int:
        file = {"name": "a.json", "mimeType": "application/json", "buffer": b"0" * size}
        answer = page.request.put(
            target.rpartition("/")[0] + "/" + name, multipart={"file": file}, headers=token
        )
        return int(answer.status)

    assert put("small", 1000) == 204
    config = tomllib.loads((root(".streamlit") / "config.toml").read_text(encoding="utf-8"))
    limit = config["server"]["maxUploadSize"] << 20
    assert put("large", limit + 1) == 413
    assert {put(f"more-{n}", 1000) for n in range(40)} == {204, 413}
