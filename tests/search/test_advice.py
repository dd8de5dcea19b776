from __future__ import annotations

import pytest

from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.changes import helpful_changes, looser_limits
from recipe_core.search.plans import plan


@pytest.mark.parametrize("field", ["tpot_ms", "ttft_ms", "usd_per_hour", "request_latency_ms"])
def test_a_looser_limit_lets_the_named_split_in(field):
    table = plan(change(DEFAULT, {f"objective.limits.{field}": 0.01}))
    assert not len(table.order)
    [looser] = looser_limits(table)
    assert list(looser.fields) == [f"objective.limits.{field}"]
    assert looser.candidate == table.candidate(table.nearest_row())
    assert looser.key in {split.key for split in plan(change(DEFAULT, looser.fields)).ranked}


def test_several_limits_are_loosened_together_where_none_alone_is_enough():
    table = plan(change(DEFAULT, {"objective.limits.tpot_ms": 0.5, "objective.limits.ttft_ms": 5}))
    [looser] = looser_limits(table)
    assert sorted(looser.fields) == ["objective.limits.tpot_ms", "objective.limits.ttft_ms"]
    assert looser.key in {split.key for split in plan(change(DEFAULT, looser.fields)).ranked}


@pytest.mark.parametrize("count", [1, 2])
def test_what_lacks_memory_gets_changes_that_really_work(count):
    small = change(
        DEFAULT, {"model": "meta-llama/Llama-3.1-405B-Instruct", "hardware.per_node": count}
    )
    table = plan(small)
    found = helpful_changes(table)
    assert found
    for remedy in found:
        after = plan(change(small, remedy.fields))
        assert after.candidate(int(after.order[0])) == remedy.candidate


def test_only_weights_that_the_engine_can_load_are_proposed():
    table = plan(
        change(DEFAULT, {"model": "meta-llama/Llama-3.1-70B-Instruct", "hardware.per_node": 1})
    )
    proposed = [
        value
        for remedy in helpful_changes(table)
        for field, value in remedy.fields.items()
        if field == "options.weight_dtypes"
    ]
    assert set(proposed) <= {("fp8",)}


def test_nothing_is_proposed_where_something_fits():
    table = plan(DEFAULT)
    assert table.nearest_row() is None
    assert helpful_changes(table) == []
