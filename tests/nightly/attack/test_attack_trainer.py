"""A few kills of the embedded trainer; the script does a hundred."""

from __future__ import annotations

import pytest

from tests.fixtures.sizes import FULL
from tests.trainer.conftest import needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]


def test_killed_runs_go_on_with_the_same_losses() -> None:
    from tests.nightly.attack.trainer import attack

    kills = 100 if FULL else 2
    run = attack(kills, seed=3)
    assert run.failures == []
    assert run.tried["kills"] == kills
    assert run.tried["resumed"]
