"""A few hostile bundles and signals; ``tests/nightly/attack`` draws them by the hundred."""

from __future__ import annotations

import signal

import pytest

from tests.nightly.attack import bundles
from tests.nightly.attack.hostile_archives import NAMES
from tests.nightly.attack.hostile_folders import CHANGES, linked_runs, planted_code
from tests.nightly.attack.signals import Case, attack

PLANTED = "launcher/__pycache__/main.cpython-311.pyc"


def test_hostile_bundles_are_refused_and_write_nowhere():
    """Paths that lead elsewhere, planted byte code, links for runs, other manifests and keys."""
    tally = bundles.attack(
        [
            ("names", NAMES.index("../outside")),
            ("names", NAMES.index(PLANTED)),
            ("folders", CHANGES.index(linked_runs)),
            ("folders", CHANGES.index(planted_code)),
            ("manifests", 2),
            ("keys", 3),
        ],
        seed=1,
    )
    assert tally.failures == []
    assert tally.tried.total() == 6


@pytest.mark.parametrize(
    ("command", "number", "moment"),
    [
        ("up", signal.SIGTERM, "a process of its own starts"),
        ("bench", signal.SIGKILL, "its state appears"),
    ],
)
def test_signals_leave_no_process_behind(command, number, moment):
    case = Case(0, "one server", command, number, moment, delay=0.0, twice=False)
    assert attack([case])[1] == []
