"""The attack in short: faults and signals beside others, hostile bodies and bundles."""

import json
import subprocess
import sys

from tests.fixtures.paths import ROOT

AREAS = {"launcher", "signals", "bodies", "bundles"}


def test_the_attack_in_short_finds_nothing(tmp_path):
    """It runs where it sees no process of others, and `make attack` tries hundreds of each."""
    report = tmp_path / "report.json"
    words = [sys.executable, "-m", "tests.nightly.attack", "--short", "-o", str(report)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr
    areas = json.loads(report.read_text())["areas"]
    assert set(areas) >= AREAS
    assert all(area["tried"] for area in areas.values())
