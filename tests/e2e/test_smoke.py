"""The way of a first user, nothing faked: the wizard's pages, and a bundle that serves a model."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.fixtures.bundles import Bundle, run
from tests.fixtures.needs import TORCH, needs
from tests.fixtures.patience import comes
from tests.fixtures.ports import free_port
from tests.fixtures.wizard import (
    LLAMA_70B,
    PAGES,
    PLAN,
    TP8,
    WALK,
    follow,
    open_step,
    query,
    saved_bundle,
    violations,
)

pytestmark = pytest.mark.browser
LEAST = {
    "hardware.device": "cpu",
    "hardware.per_node": "1",
    "workload.input_tokens": "32",
    "workload.output_tokens": "8",
    "workload.concurrency": "2",
    "options.engines": "transformers",
}


@pytest.mark.engine
@needs("a bundle that serves", *TORCH)
def test_a_bundle_of_the_wizard_outlives_a_kill_and_answers(
    page: Any, address: str, untrained_model: Path, tmp_path: Path
) -> None:
    open_step(page, address, "model", urlencode({"model": str(untrained_model)} | LEAST))
    for title in list(WALK.values())[1:]:
        follow(page, "Next", title)
    follow(page, "Show the answer", PLAN)
    follow(page, "Ship it", PAGES["ship"])
    archive = saved_bundle(page, tmp_path)
    bundle = Bundle(tmp_path / "bundle", free_port())
    shutil.unpack_archive(archive, bundle.root)

    def launch(*words: str) -> str:
        done = run(bundle, *words, timeout=None)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        launch("up", "--port", str(bundle.port))
        os.kill(bundle.state()["servers"][0]["pid"], signal.SIGKILL)
        assert comes(lambda: bundle.state()["restarts"] == 1 and bundle.state()["ready"])
        assert json.loads(launch("status"))["state"] == "up"
        launch("bench")
        measured = bundle.read("measurement.json")
        assert measured["metrics"]["failed"] == 0
        assert measured["metrics"]["requests"] >= 4
        assert measured["ratio"]["tpot_s"] > 0
    finally:
        launch("down")
    assert not bundle.up


def test_a_link_opens_every_page(page: Any, address: str) -> None:
    """Two are held against axe; narrow and dark ones, and all measured runs, are of the night."""
    wrong = {}
    for step in PAGES.keys() - {"evidence", ""}:
        open_step(page, address, step, f"{LLAMA_70B}&hardware.device=mi300x&pins={TP8}")
        if step in WALK:
            page.get_by_text("Llama-3.1-70B-Instruct · 8 × MI300X").wait_for()
        asked = query(page)
        if (asked["pins"], asked["hardware.device"]) != (TP8, "mi300x"):
            wrong[step, "link"] = [page.url]
        if step in ("plan", "ship"):
            wrong[step, "axe"] = violations(page)
    assert not any(wrong.values()), wrong
