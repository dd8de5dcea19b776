"""Cases that schemathesis makes from the OpenAPI document, with all checks of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fixtures.serve import Server, recipe_serve
from tests.nightly.attack.harness import Order, Tally

CONFIG = Path(__file__).with_name("schemathesis.toml")
ALL, FEW = "examples,coverage,fuzzing,stateful", "examples,fuzzing"
"""Phases; that of coverage has twenty thousand cases, however few are asked for."""
ENOUGH = 50
"""Cases an operation from which on there is time for all phases."""


def generated(server: Server, examples: int, seed: int, phases: str) -> tuple[int, str]:
    """Schemathesis' exit code and report; all its checks."""
    words = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run",
        f"http://127.0.0.1:{server.port}/api/v1/openapi.json", "--checks", "all",
        "--max-examples", str(examples), "--seed", str(seed), "--phases", phases,
        "--generation-database", "none", "--suppress-health-check", "all",
        # a connection a case: the server answers kept ones only after the client's delayed ACK
        "-H", "Connection: close",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def attack(order: Order) -> Tally:
    """So many generated cases an operation, and those of its other phases."""
    phases = ALL if order.count >= ENOUGH else FEW
    with tempfile.TemporaryDirectory() as folder, recipe_serve(Path(folder)) as server:
        code, text = generated(server, order.count, order.seed, phases)
    found = Tally(findings=[text[-6000:]] if code else [])
    if match := re.search(r"(\d+) generated", text):
        found.tried["cases"] = int(match[1])
    found.notes.append(text[text.find("SUMMARY") :].strip("= \n"))
    return found
