"""How far a simulation has come, and that who watches it may end it."""

from __future__ import annotations

import pytest

from recipe_core.base import progress
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan

P95 = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "workload.concurrency": 64,
    "objective.limits.percentile": 95,
    "objective.limits.tpot_ms": 60,
}


class EnoughError(Exception):
    """What a watcher ends work with."""


def watched(changes):
    seen = []
    with progress.watched(lambda *step: seen.append(step)):
        table = plan(change(DEFAULT, P95 | changes))
    return table, seen


def test_every_simulated_split_is_a_step_and_a_search_of_loads_one_task():
    table, seen = watched({})
    simulations = [block.simulation for block in table.blocks if block.simulation is not None]
    simulated = sum(int((each.means_s["tpot_s"] > 0).sum()) for each in simulations)
    assert simulated > 1
    assert seen == [(n, simulated) for n in range(simulated + 1)]
    table, seen = watched({"workload.concurrency": None})
    assert table.load_searched
    assert len({steps for _, steps in seen}) == 1
    assert [done for done, _ in seen] == list(range(len(seen)))
    assert seen[-1][0] <= seen[-1][1]


def test_a_watcher_ends_the_work_at_the_next_step():
    seen: list[int] = []

    def enough(done: int, _: int):
        seen.append(done)
        if done == 2:
            raise EnoughError

    with pytest.raises(EnoughError), progress.watched(enough):
        plan(change(DEFAULT, P95))
    assert seen == [0, 1, 2]
    # nobody watches any more, and nothing is left of what was ended
    assert plan(change(DEFAULT, P95)).order.size
    # means have no steps
    with progress.watched(lambda *_: pytest.fail("nothing is simulated")):
        plan(change(DEFAULT, {"model": P95["model"]}))
        progress.step()
