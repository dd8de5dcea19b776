"""A few hostile bundles and signals; ``tests/nightly/attack`` draws them by the hundred."""

import signal

import pytest

from tests.nightly.attack import bundles
from tests.nightly.attack.signals import Case, attack


def test_hostile_bundles_are_refused_and_write_nowhere():
    families = ("zip-cut", "file-bytes", "names", "folders", "manifests", "keys")
    tally = bundles.attack([(family, 0) for family in families], seed=1)
    assert (tally.failures, tuple(tally.tried)) == ([], families)


@pytest.mark.parametrize(
    ("command", "number", "moment"),
    [("up", signal.SIGTERM, "a process of its own starts"), ("bench", 9, "its state appears")],
)
def test_signals_leave_no_process_behind(command, number, moment):
    case = Case(0, "one server", command, signal.Signals(number), moment, delay=0.0, twice=False)
    assert attack([case]).failures == []
