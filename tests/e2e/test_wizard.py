"""The wizard in a real headless Chromium, against the app started as a user starts it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from recipe_core.resources import root

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the browser tests did not run")

pytestmark = pytest.mark.browser

CHROMIUM = next(
    (path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome") if Path(path).exists()), None
)
TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
LLAMA_70B = "model=meta-llama%2FLlama-3.1-70B-Instruct"
QUESTIONS = {
    "": "What do you want to run?",
    "hardware": "Where will it run?",
    "objective": "What matters?",
    "compare": "Which split?",
    "recipe": "Take it",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a free port, started from another folder, so that nothing depends on where one stands."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    argv = [sys.executable, "-m", "streamlit", "run", str(root("app.py")), "--server.port", str(port), "--server.headless", "true"]
    argv += ["--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"]
    path = os.pathsep.join([str(root("app.py").parent), os.environ.get("PYTHONPATH", "")])
    with log.open("w") as output:
        server = subprocess.Popen(argv, cwd=log.parent, env=os.environ | {"PYTHONPATH": path}, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/_stcore/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(150):
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"the app did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the browser tests did not run")
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test on a console error or a request that leaves this machine."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
    found = context.new_page()
    found.set_default_timeout(15_000)
    errors: list[str] = []
    outside: list[str] = []
    found.on("console", lambda message: errors.append(told(message)) if message.type == "error" and not is_probe(message) else None)
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("request", lambda request: outside.append(request.url) if is_outside(request.url) else None)
    yield found
    context.close()
    assert errors == []
    assert outside == []


def told(message: Any) -> str:
    return f"{message.text} ({message.location.get('url')})"


def is_probe(message: Any) -> bool:
    """Streamlit looks for its server below a deep link's path first, and finds it at the root."""
    return "404" in message.text and "/_stcore/" in str(message.location.get("url"))


def is_outside(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost")


def settled(page: Any, question: str) -> None:
    """Wait for a page's title and for the script to have run to its end."""
    page.get_by_role("heading", level=1, name=question).wait_for()
    page.wait_for_function("document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'")


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def wait_for_query(page: Any, name: str, value: str | None) -> None:
    for _ in range(100):
        if query(page).get(name) == value:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the address has {name}={query(page).get(name)!r}, not {value!r}: {page.url}")


def choose(page: Any, label: str, text: str, option: str) -> None:
    """Type into a select box and take an option."""
    box = page.get_by_role("combobox", name=label)
    box.click()
    box.fill(text)
    page.get_by_role("option", name=option).first.click()


def test_from_the_first_page_to_a_bundle(page: Any, address: str, tmp_path: Path) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    choose(page, "Model", "llama3.170b", "meta-llama/Llama-3.1-70B-Instruct")
    wait_for_query(page, "model", "meta-llama/Llama-3.1-70B-Instruct")
    for step, question in list(QUESTIONS.items())[1:]:
        page.get_by_role("button", name="Next").click()
        settled(page, question)
        assert urlsplit(page.url).path == f"/{step}"
        assert query(page)["model"] == "meta-llama/Llama-3.1-70B-Instruct"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download bundle").click()
    bundle = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(bundle)
    with zipfile.ZipFile(bundle) as archive:
        assert {"recipe.yaml", "launch.py", "launch.json", "expected.json", "MANIFEST.json"} <= set(archive.namelist())
        assert b"meta-llama/Llama-3.1-70B-Instruct" in archive.read("recipe.yaml")
        archive.extractall(tmp_path / "bundle")
    checked = subprocess.run([sys.executable, "-m", "recipe_core", "check", str(bundle)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    preflight = subprocess.run([sys.executable, "launch.py", "preflight"], capture_output=True, text=True, cwd=tmp_path / "bundle")
    assert preflight.returncode == 1  # this machine has no eight H100
    assert "H100" in preflight.stdout + preflight.stderr
    assert "Traceback" not in preflight.stderr


@pytest.mark.parametrize("step", QUESTIONS)
def test_a_link_opens_on_every_page(page: Any, address: str, step: str) -> None:
    page.goto(f"{address}/{step}?{LLAMA_70B}&hardware.device=mi300x&pins={TP8}")
    settled(page, QUESTIONS[step])
    page.get_by_text("Llama-3.1-70B-Instruct · 8 × mi300x").wait_for()
    assert query(page)["pins"] == TP8


def test_back_and_forward_restore_choice_and_page(page: Any, address: str) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    choose(page, "Model", "qwen3-8b", "Qwen/Qwen3-8B")
    wait_for_query(page, "model", "Qwen/Qwen3-8B")
    page.get_by_role("button", name="Next").click()
    settled(page, QUESTIONS["hardware"])
    page.go_back()
    settled(page, QUESTIONS[""])
    page.get_by_text("Qwen3-8B · 8 × h100-sxm").wait_for()
    page.go_back()
    page.get_by_text("Llama-3.1-8B-Instruct · 8 × h100-sxm").wait_for()
    page.go_forward()
    page.get_by_text("Qwen3-8B · 8 × h100-sxm").wait_for()
    page.go_forward()
    settled(page, QUESTIONS["hardware"])
    page.get_by_text("Qwen3-8B · 8 × h100-sxm").wait_for()


def test_a_click_in_the_navigation_keeps_the_choice(page: Any, address: str) -> None:
    page.goto(f"{address}/?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    page.get_by_role("link", name="Objective").click()
    settled(page, QUESTIONS["objective"])
    wait_for_query(page, "model", "meta-llama/Llama-3.1-70B-Instruct")


def test_a_click_on_a_point_pins_it_and_again_unpins(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}")
    settled(page, QUESTIONS["compare"])

    def click_best() -> None:
        point = page.locator(".js-plotly-plot").first.locator(".scatterlayer .trace").last.locator(".points path").first
        point.wait_for()
        place = point.bounding_box()
        page.mouse.move(place["x"] + place["width"] / 2 - 2, place["y"] + place["height"] / 2)
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)

    click_best()
    remove = page.get_by_role("button", name="Remove")
    remove.wait_for()
    settled(page, QUESTIONS["compare"])
    page.wait_for_function("new URLSearchParams(location.search).get('pins')?.startsWith('vllm.')")
    page.wait_for_timeout(500)
    click_best()
    remove.wait_for(state="detached")
    wait_for_query(page, "pins", None)


def test_the_change_that_helps_is_one_click(page: Any, address: str) -> None:
    page.goto(f"{address}/compare?{LLAMA_70B}&hardware.per_node=1")
    settled(page, QUESTIONS["compare"])
    page.get_by_text("GiB too much").first.wait_for()
    page.get_by_role("button", name="fits").first.click()
    page.get_by_text("fit.").first.wait_for()


def test_the_first_page_is_also_found_by_its_name(page: Any, address: str) -> None:
    page.goto(f"{address}/model?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    assert urlsplit(page.url).path == "/"
    assert query(page)["model"] == "meta-llama/Llama-3.1-70B-Instruct"


def test_the_api_answers_on_the_same_port(address: str) -> None:
    with urllib.request.urlopen(f"{address}/api/v1/models") as answer:
        assert answer.status == 200
        assert b"Llama-3.1-70B" in answer.read()
