"""The search box of models in a real browser: typed text and Enter take the right model."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.ports import free_port
from tests.fixtures.serve import Server

APP = Path(ROOT) / "tests" / "fixtures" / "model_pick_app.py"
TYPED = {
    "llama 3.3 70b": "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek r1": "deepseek-ai/DeepSeek-R1",
    "gpt oss": "openai/gpt-oss-120b",
    "qwen3 235b": "Qwen/Qwen3-235B-A22B",
    "phi 4": "microsoft/phi-4",
    "70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral large": "mistralai/Mistral-Large-3-675B-Instruct-2512",
    "llama70b": "meta-llama/Llama-3.3-70B-Instruct",
}


@pytest.fixture(scope="module")
def box_address(tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("box") / "log"
    words = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.headless", "true"]
    words += ["--server.address", "127.0.0.1", "--server.port", str(port)]
    words += ["--browser.gatherUsageStats", "false"]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (
        log.open("wb") as output,
        subprocess.Popen(
            words, env=os.environ | {"PYTHONPATH": paths}, stdout=output, stderr=output
        ) as process,
    ):
        server = Server(port, process, log)

        def answers():
            assert process.poll() is None, log.read_text()
            with suppress(OSError):
                return server.status("GET", "/_stcore/health", {}) == 200

        try:
            assert comes(answers), log.read_text()
            yield server.url
        finally:
            process.terminate()
            process.wait(PATIENCE)


def open_list(page):
    """Open the list of wanted models, which a choice closes, unless text overtakes its run."""
    from playwright.sync_api import TimeoutError as StaysOpen

    with suppress(StaysOpen):
        page.locator("details:not([open]) summary").first.click(timeout=PATIENCE * 250)
    page.locator("details[open]").first.wait_for()


def test_typed_text_and_enter_take_the_right_model(page, box_address):
    page.goto(box_address)
    box = page.get_by_role("searchbox")
    taken = page.get_by_test_id("stCode")
    for typed, meant in TYPED.items():
        open_list(page)
        page.get_by_role("button", name="Qwen3 32B ·").first.click()  # from another model each time
        taken.get_by_text("Qwen/Qwen3-32B").wait_for()
        box.fill("")
        box.press_sequentially(typed)
        box.press("Enter")
        taken.get_by_text(meant, exact=True).wait_for()
    # the first of the others is one key away
    others = page.locator(".st-key-probe-others button")
    first = others.first.inner_text()
    assert "70.6B · 128k" in first
    others.first.focus()
    page.keyboard.press("Enter")
    taken.get_by_text("meta-llama/Llama-3.1-70B-Instruct", exact=True).wait_for()


def test_a_click_on_a_wanted_model_counts_while_the_box_has_text(page, box_address):
    page.goto(box_address)
    open_list(page)
    page.get_by_role("searchbox").press_sequentially("phi 4")
    wanted = page.get_by_role("button", name="gpt oss 120b ·")
    wanted.click()  # leaving the box takes its text first
    page.get_by_test_id("stCode").get_by_text("openai/gpt-oss-120b", exact=True).wait_for()
