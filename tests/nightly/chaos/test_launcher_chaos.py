"""A dozen kinds of faults, one of each: what `python -m tests.nightly.chaos` does by the hundred.

States are waited for, not times. Each deployment meets its faults one after the other.
"""

import random

import pytest

from tests.fixtures.ports import free_port

from .deployments import make
from .faults import FAULTS, play
from .trial import Trial

EPISODES = {
    "one": [
        *("kill a rank", "stop a server (SIGSTOP)", "disk full", "kill the keeper and a server"),
        *("weights damaged", "kill up while it starts", "slow start"),
    ],
    "routed": ["kill the router", "kill a server", "port taken for a while"],
    "nvidia": ["slow death", "another version installed", "up on a taken port"],
    "amd": ["a device is lost and found"],
}


@pytest.mark.parametrize("kind", EPISODES)
def test_faults_are_outlasted_and_explained(kind, tmp_path):
    trial = Trial(make(kind, tmp_path, free_port()), random.Random(18))
    try:
        trial.require("up")
        trial.wait("it serves", trial.serves)
        for name in EPISODES[kind]:
            result = play(trial, FAULTS[name])
            log = trial.own / "keeper.log"
            shown = log.read_text()[-3000:] if log.is_file() else "no keeper's log"
            assert not result.findings, f"{result}\n{shown}"
    finally:
        left = trial.end()
    assert not left
