"""A few trials of the attack on the launcher; the command runs hundreds."""

from __future__ import annotations

from tests.fixtures.sizes import FULL
from tests.nightly.attack.signals import KINDS, Case, attack


def test_signals_at_random_moments_leave_nothing_behind():
    tried, failures = attack(Case.draw(11, index) for index in range(300 if FULL else 12))
    assert failures == []
    assert tried["met a live launcher"]


def test_trials_are_drawn_alike_and_of_every_kind():
    cases = [Case.draw(5, index) for index in range(200)]
    assert cases == [Case.draw(5, index) for index in range(200)]
    assert {case.kind for case in cases} == set(KINDS)
