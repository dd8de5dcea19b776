from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.groups import HEAVY, LARGER, SERVERS, group_of
from tests.fixtures.paths import ROOT

HERE = ROOT / "tests"
MODULES = [path.relative_to(HERE.parent).as_posix() for path in HERE.rglob("test_*.py")]


def test_every_name_is_a_module_or_a_group_that_has_some():
    stems, groups = {Path(path).stem for path in MODULES}, set(map(group_of, MODULES))
    assert {*HEAVY, *SERVERS} <= stems
    assert {*LARGER, *HEAVY} <= groups


@pytest.mark.parametrize("path", MODULES)
def test_what_drives_a_browser_or_starts_torchrun_is_in_its_group(path):
    text = (HERE.parent / path).read_text()
    for mark in ("browser", "torchrun"):
        if (
            f"@pytest.mark.{mark}\n" in text
            or f"pytestmark = pytest.mark.{mark}" in text
            or f"pytestmark = [pytest.mark.{mark}" in text
        ):
            assert group_of(f"{path}::test") == mark
