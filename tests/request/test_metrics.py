"""The registry of metrics: one row names, shows and bounds a quantity."""

from typing import get_args

import pytest

from recipe_core.base.data_files import DataFile
from recipe_core.request import metrics as registry
from recipe_core.request.metrics import (
    Goal,
    column_metric,
    goals_of,
    is_more_better,
    limit_rules,
    limits_by_name,
    metrics,
    metrics_of,
    time_to_finish,
)
from recipe_core.request.objective import Limits
from tests.fixtures.refusals import refusal

KINDS = get_args(registry.Kind)


def test_a_name_stands_once_in_a_kind_and_a_title_once_in_a_table():
    for kind in KINDS:
        names = [metric.name for metric in metrics() if kind in metric.kinds]
        assert len(names) == len(set(names)) == len(metrics_of(kind))
        titles = [metric.title for metric in metrics_of(kind).values()]
        assert len(titles) == len(set(titles))


def test_every_limit_of_the_schema_has_its_rule_and_every_goal_a_column():
    assert set(limits_by_name()) == set(Limits.model_fields) - {"percentile"}
    assert {metric.limit for metric in metrics()} - {None} == set(limits_by_name())
    assert all(code == rule.code for code, rule in limit_rules().items())
    assert set(goals_of("closed")) == set(get_args(Goal))
    assert set(goals_of("training")) < set(get_args(Goal))
    assert goals_of("closed")["throughput"] == ("output_tokens_per_s", -1)
    assert goals_of("closed")["accuracy"] == ("accuracy_lost", 1)


@pytest.mark.parametrize("name", list(limits_by_name()))
def test_a_limit_is_stated_shown_and_loosened_in_its_units(name):
    rule = limits_by_name()[name]
    value = 0.75 if name == "accuracy_recovery" else 3.0
    bound = rule.bound(Limits(**{name: value}))
    assert bound == pytest.approx(value / rule.factor)
    assert rule.bound(Limits()) is None
    loosened = rule.loosened(bound)
    assert loosened <= value if rule.at_least else loosened >= value
    assert loosened == pytest.approx(value, rel=0.01)
    assert rule.show(bound) in rule.change_text(value)


def test_ends_of_a_band_are_better_as_their_metric_is_and_a_long_run_is_in_days():
    assert is_more_better("accuracy_low")
    assert is_more_better("kv_cache_tokens")
    assert not is_more_better("ttft_s")
    assert time_to_finish(47 * 3600).unit.symbol == "h"
    assert time_to_finish(49 * 3600).unit.symbol == "days"
    assert column_metric("ttft_s").phrase(0.25) == "250 ms to first token"


def test_a_mistake_in_the_file_is_named():
    file = DataFile(registry.FILE, "objective")
    for wrong, message in (({"unit": "furlongs"}, "unit"), ({"kinds": ["baking"]}, "kinds")):
        document = file.read()
        document["metrics"][0].update(wrong)
        assert message in str(refusal(file.validated, document, registry._File))
