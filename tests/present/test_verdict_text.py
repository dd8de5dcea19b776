"""The verdict of a plan in words: three states, legal splits, money, ranges and doubts."""

from __future__ import annotations

import re
from functools import cache

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
LOADED = {"workload.concurrency": "64"}
COST = LOADED | {"objective.optimize": "cost"}
RUN = {"workload.kind": "training"}


@cache
def _planned(query: tuple[tuple[str, str], ...]) -> Plan:
    request, ignored = from_query(LLAMA | dict(query))
    assert not ignored
    return plan(request)


def planned(query: dict[str, str] | None = None, **limits: str) -> Plan:
    """A plan, kept for the tests that ask for it again."""
    stated = {f"objective.limits.{name}": value for name, value in limits.items()}
    return _planned(tuple(((query or {}) | stated).items()))


def test_splits_that_divide_nothing_are_not_counted_and_runs_are_what_can_run() -> None:
    every = planned({"workload.max_context": "24576"})
    never = ~legal(every)
    assert set(every.degree("tp")[never].tolist()) == {3, 5, 6, 7}
    assert not every.feasible[never].any()
    held, doubtful = int(every.holds.sum()), int((every.feasible & every.uncertain).sum())
    of = int(legal(every).sum())
    assert of < len(every)
    said = f"{held} of {of} legal splits hold the load · {doubtful} may not start"
    assert counts(every) == said
    assert set(planned().titles) | set(planned(RUN).titles) >= NEVER
    assert not any(code == "memory" or code.startswith("limit") for code in NEVER)
    run = planned(RUN | {"workload.tokens": "1e10", "hardware.nodes": "8"})
    assert re.fullmatch(r"[\d,]+ of [\d,]+ legal splits can run", counts(run))


def test_the_best_says_devices_figures_and_how_sure_it_is() -> None:
    limited = planned(COST, tpot_ms="35")
    said, row = verdict(limited), limited.best_row
    assert (said.state, said.best, said.doubtful) == ("holds", True, True)
    assert said.subject == "tp 4 · 4 of 8 × H100 SXM5"
    miss = 1 - float(limited.confidence([row])[0])
    assert f"may miss the limit: {miss * 100:.0f} %" in said.line
    assert "within the limit" in said.counts
    assert main_figures(limited, row)[:2] == ["usd", "tpot"]  # what is limited comes next
    assert re.search(r"34\.\d ms, likely \d\d\.\d to \d\d\.\d ms; limit 35", said.facts[-1])
    sure = planned(LOADED | {"objective.confidence": "0.8"}, tpot_ms="60", ttft_ms="5000")
    assert "within the limits with 80 % confidence" in counts(sure)
    assert limits_text(sure, sure.best_row).startswith("keeps the limits: ")


def test_a_free_plan_says_ranges_and_nothing_of_limits() -> None:
    free = planned()
    best, other = free.best_row, int(free.order[1])
    assert limits_text(free, best) == range_text(free, "gpus", best) == ""
    assert "limit" not in counts(free)
    said = range_text(free, "tpot", best)
    assert re.fullmatch(r"Time per output token: \S+ ms, likely \S+ to \S+ ms", said)
    chosen = verdict(free, other)
    assert not chosen.best
    assert chosen.subject.startswith(free.label(other).split(" · ")[0])


def test_the_best_that_queues_warns_and_says_what_it_holds() -> None:
    full = planned({"hardware.per_node": "4", "workload.concurrency": "512"})
    assert full.queues[full.best_row]
    said = verdict(full)
    assert (said.state, said.doubtful) == ("queues", True)
    assert re.search(r"holds \d+ of 512 at once", said.line)
    assert re.match(r"0 of .* · \d+ starts? and queues?\b", said.counts)


def test_nothing_that_runs_names_the_nearest() -> None:
    limit = {"objective.limits.tpot_ms": "1"}
    for query, start in (
        ({"hardware.per_node": "1"}, "The only split does not hold the load"),
        (limit, "None of 32 legal splits holds a load within"),
        (limit | LOADED, "None of 32 legal splits holds the load within"),
        (RUN | {"hardware.per_node": "1"}, "None of "),
    ):
        none = planned(query)
        said = verdict(none)
        assert said.state == "nothing"
        assert said.counts.startswith(start)
        assert said.subject.startswith("Nearest is ")
        assert said.line.startswith(none.reasons(none.nearest_row())[0])


def test_money_is_by_the_hour_and_the_month_of_the_devices_used() -> None:
    cheap = planned(COST)
    row = cheap.best_row
    hour = float(cheap.raw("usd_hour")[row])
    text = money_text(cheap, row)
    assert text.startswith(f"{cheap.devices_text(row)}: ${hour:.3g} an hour, $")
    month = float(re.search(r"\$([\d,]+) a month", text)[1].replace(",", ""))
    assert month == pytest.approx(hour * HOURS_PER_MONTH, rel=0.01)
    unpriced = planned({"hardware.device": "gh200-144gb", "hardware.per_node": "4"})
    assert money_text(unpriced, unpriced.best_row) == ""


def test_a_load_is_said_with_the_split_where_it_is_searched_or_of_several() -> None:
    searched = planned(tpot_ms="40")
    load = int(searched.columns["load"][searched.best_row])
    assert searched.load_searched
    assert verdict(searched).subject.endswith(f" · {load:,} in flight")
    assert "hold a load within the limit" in verdict(searched).short_counts
    assert verdict(planned(COST)).subject.count("in flight") == 0
    several = planned({"options.loads": "16,64"})
    assert re.search(r"· (16|64) in flight$", verdict(several).subject)
