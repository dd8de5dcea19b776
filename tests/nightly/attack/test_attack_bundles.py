"""A few of the hostile bundles of ``python -m tests.nightly.attack.bundles``."""

from __future__ import annotations

import pytest

from tests.fixtures.sizes import examples
from tests.nightly.attack.bundles import FAMILIES, Ended, attack, judge_accepted, judge_end
from tests.nightly.attack.hostile_bundles import Hostile


@pytest.mark.parametrize("seed", [7])
def test_no_hostile_bundle_is_accepted_or_writes_elsewhere(seed: int) -> None:
    tally = attack(examples(250, least=25), seed)
    assert tally.failures == []
    assert set(tally.tried) == set(FAMILIES)


def test_what_ends_as_none_may_is_seen() -> None:
    assert judge_end(Ended(99, "", "Traceback (most recent call last)", 0, 0, 0), "check")
    assert judge_end(Ended(1, "", "Traceback (most recent call last)", 0, 0, 0), "check")
    assert judge_end(Ended(-9, "", "error: x", 0, 0, 0), "check")
    assert judge_end(Ended(1, "", "", 0, 0, 0), "check")
    assert judge_end(Ended(1, "", "error: x", 0, 0, 0), "check") is None


def test_what_is_accepted_wrongly_is_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    original = {"launch.py": b"x", "MANIFEST.json": b"m"}
    path = tmp_path_factory.mktemp("b")
    out = (
        '{"signed": null, "verdict": "ok", "differs": {"changed": []}}'
        '\n=== {"launch.py": "0", "MANIFEST.json": "0"}'
    )
    ended = Ended(0, out, "", 0, 0, 0)
    assert "other content" in str(judge_accepted(Hostile(path, original), ended))
    assert "no difference" in str(judge_accepted(Hostile(path, original, sealed=True), ended))
    assert "its key" in str(judge_accepted(Hostile(path, original, key=b"k"), ended))
    unsigned = Hostile(path, {}, sealed=True)
    assert judge_accepted(Hostile(path, original, sealed=True), ended)
    assert unsigned.key is None
