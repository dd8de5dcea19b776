"""Every area of the attack, at the size of a night."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.paths import ROOT
from tests.fixtures.sizes import FULL, PERCENT
from tests.nightly.attack.__main__ import AREAS


@pytest.mark.parametrize("area", [name for name, area in AREAS.items() if area.is_there])
def test_an_area_finds_nothing(area: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = [sys.executable, "-m", "tests.nightly.attack", area, "-o", str(report)]
    words += ["--seed", "7", "--scale", str(PERCENT / (100 if FULL else 200))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr
    assert json.loads(report.read_text())["areas"][area]["tried"]
