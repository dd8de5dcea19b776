"""Hostile bundles by the hundred, and what their judge takes for a failure."""

from __future__ import annotations

from tests.fixtures.sizes import examples
from tests.nightly.attack.bundles import FAMILIES, Ended, attack, cases, judge_accepted, judge_end
from tests.nightly.attack.hostile_bundles import Hostile


def test_no_hostile_bundle_is_accepted_or_writes_elsewhere():
    tally = attack(cases(examples(250, least=25)), seed=7)
    assert tally.failures == []
    assert set(tally.tried) == set(FAMILIES)


def test_what_ends_as_none_may_or_is_accepted_wrongly_is_seen(tmp_path):
    for code, err in ((99, "Traceback (most"), (1, "Traceback (most"), (-9, "error: x"), (1, "")):
        assert judge_end(Ended(code, "", err, 0, 0, 0), "check")
    assert judge_end(Ended(1, "", "error: x", 0, 0, 0), "check") == []
    original = {"launch.py": b"x", "MANIFEST.json": b"m"}
    out = (
        '{"signed": null, "verdict": "ok", "differs": {"changed": []}}'
        '\n=== {"launch.py": "0", "MANIFEST.json": "0"}'
    )
    ended = Ended(0, out, "", 0, 0, 0)
    for bundle, reason in (
        (Hostile(tmp_path, original), "other content"),
        (Hostile(tmp_path, original, sealed=True), "no difference"),
        (Hostile(tmp_path, original, key=b"k"), "its key"),
    ):
        assert reason in judge_accepted(bundle, ended)[0]
