"""The verdict of a plan in words: three states, legal splits, money, ranges and doubts."""

from __future__ import annotations

import re

import pytest

from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.present.verdict import (
    counts,
    limits_text,
    main_figures,
    money_text,
    range_text,
    verdict,
)
from recipe_core.request.link import from_query
from recipe_core.search.legal import NEVER, legal
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan

LLAMA = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
COST = {"objective.optimize": "cost", "workload.concurrency": "64"}


def planned(**query: str) -> Plan:
    request, ignored = from_query(LLAMA | query)
    assert not ignored
    return plan(request)


def test_splits_that_divide_nothing_are_not_counted() -> None:
    every = planned(**{"workload.max_context": "24576"})
    never = ~legal(every)
    tp = every.degree("tp")
    assert set(tp[never].tolist()) == {3, 5, 6, 7}
    assert not every.feasible[never].any()
    held, doubtful = int(every.holds.sum()), int((every.feasible & every.uncertain).sum())
    of = int(legal(every).sum())
    assert of < len(every)
    assert counts(every) == (
        f"{held} of {of} legal splits hold the load · {doubtful} may not start"
    )


def test_rules_of_divisibility_are_rules() -> None:
    serving, training = planned(), planned(**{"workload.kind": "training"})
    assert set(serving.titles) | set(training.titles) >= NEVER
    assert "memory" not in NEVER
    assert not any(code.startswith("limit") for code in NEVER)


def test_the_best_says_devices_figures_and_how_sure_it_is() -> None:
    limited = planned(**COST, **{"objective.limits.tpot_ms": "35"})
    said, row = verdict(limited), limited.best_row
    assert row is not None
    assert said.state == "holds"
    assert said.best
    assert said.subject == "tp 4 · 4 of 8 × H100 SXM5"
    miss = 1 - float(limited.confidence([row])[0])
    assert said.doubtful
    assert f"may miss the limit: {miss * 100:.0f} %" in said.line
    assert "within the limit" in said.counts
    assert main_figures(limited, row)[0] == "usd"
    assert main_figures(limited, row)[1] == "tpot"  # what is limited comes next
    assert re.search(r"34\.\d ms, likely \d\d\.\d to \d\d\.\d ms; limit 35", said.facts[-1])


def test_several_limits_and_a_confidence_are_said() -> None:
    sure = planned(
        **{
            "workload.concurrency": "64",
            "objective.limits.tpot_ms": "60",
            "objective.limits.ttft_ms": "5000",
            "objective.confidence": "0.8",
        }
    )
    assert sure.best_row is not None
    assert "within the limits with 80 % confidence" in counts(sure)
    assert limits_text(sure, sure.best_row).startswith("keeps the limits: ")


def test_without_limits_nothing_is_said_of_them() -> None:
    free = planned()
    assert free.best_row is not None
    assert limits_text(free, free.best_row) == ""
    assert "limit" not in counts(free)


def test_the_best_that_queues_warns_and_says_what_it_holds() -> None:
    full = planned(**{"hardware.per_node": "4", "workload.concurrency": "512"})
    row = full.best_row
    assert row is not None
    assert full.queues[row]
    said = verdict(full)
    assert said.state == "queues"
    assert said.doubtful
    assert re.search(r"holds \d+ of 512 at once", said.line)
    assert said.counts.startswith("0 of ")
    assert re.search(r" · \d+ starts? and queues?\b", said.counts)


def test_a_chosen_split_is_told_apart_from_the_best() -> None:
    free = planned()
    other = int(free.order[1])
    said = verdict(free, other)
    assert not said.best
    assert said.subject.startswith(free.label(other).split(" · ")[0])


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ({"hardware.per_node": "1"}, "The only split does not hold the load"),
        ({"objective.limits.tpot_ms": "1"}, "None of 32 legal splits holds a load within"),
        (
            {"objective.limits.tpot_ms": "1", "workload.concurrency": "64"},
            "None of 32 legal splits holds the load within",
        ),
        ({"workload.kind": "training", "hardware.per_node": "1"}, "None of "),
    ],
    ids=["one", "limit", "stated-load", "training"],
)
def test_nothing_that_runs_names_the_nearest(query: dict[str, str], start: str) -> None:
    none = planned(**query)
    said = verdict(none)
    assert said.state == "nothing"
    assert said.counts.startswith(start)
    assert said.subject.startswith("Nearest is ")
    row = none.nearest_row()
    assert row is not None
    assert said.line.startswith(none.reasons(row)[0])


def test_a_run_is_counted_as_what_can_run() -> None:
    run = planned(**{"workload.kind": "training", "workload.tokens": "1e10", "hardware.nodes": "8"})
    assert re.fullmatch(r"[\d,]+ of [\d,]+ legal splits can run", counts(run))


def test_money_is_by_the_hour_and_the_month_of_the_devices_used() -> None:
    free = planned(**COST)
    row = free.best_row
    assert row is not None
    hour = float(free.raw("usd_hour")[row])
    text = money_text(free, row)
    assert text.startswith(f"{free.devices_text(row)}: ${hour:.3g} an hour, $")
    month = float(re.search(r"\$([\d,]+) a month", text)[1].replace(",", ""))  # type: ignore[index]
    assert month == pytest.approx(hour * HOURS_PER_MONTH, rel=0.01)


def test_nothing_is_said_of_money_without_a_price() -> None:
    unpriced = planned(**{"hardware.device": "gh200-144gb", "hardware.per_node": "4"})
    assert unpriced.best_row is not None
    assert money_text(unpriced, unpriced.best_row) == ""


def test_a_range_names_both_ends() -> None:
    free = planned()
    assert free.best_row is not None
    assert re.fullmatch(
        r"Time per output token: \S+ ms, likely \S+ to \S+ ms",
        range_text(free, "tpot", free.best_row),
    )
    assert range_text(free, "gpus", free.best_row) == ""


def test_a_searched_load_is_said_with_the_split_that_holds_it() -> None:
    searched = planned(**{"objective.limits.tpot_ms": "40"})
    row = searched.best_row
    assert searched.load_searched
    assert row is not None
    load = int(searched.columns["load"][row])
    assert verdict(searched).subject.endswith(f" · {load:,} in flight")
    assert "hold a load within the limit" in verdict(searched).short_counts
    assert verdict(planned(**COST)).subject.count("in flight") == 0


def test_several_loads_are_told_apart() -> None:
    several = planned(**{"options.loads": "16,64"})
    assert several.best_row is not None
    assert re.search(r"· (16|64) in flight$", verdict(several).subject)
