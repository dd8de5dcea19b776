"""The verdict of a plan in words, and the words that pages explain."""

import re
from functools import cache

import numpy as np
import pytest

from recipe_core.base import units
from recipe_core.base.data_files import DataFile
from recipe_core.estimates.rules.refusal import RULE_TITLES
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import NEVER, legal_rows, nearest_row
from recipe_core.plans.splits import find_row, row_key, row_reasons
from recipe_core.request.link import FIELDS, from_query
from recipe_core.request.metrics import column_metric, metrics
from recipe_core.request.objective import SURE
from recipe_core.request.schema import describe_field
from recipe_core.views import glossary
from recipe_core.views import verdict as words
from recipe_core.views.plain import plain_help
from recipe_core.views.plan_words import used_devices_text
from recipe_core.views.verdict import plan_verdict
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

LLAMA = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
LOADED = {"workload.concurrency": "64"}
COST = LOADED | {"objective.optimize": "cost"}
RUN = {"workload.kind": "training"}


@cache
def _planned(*query):
    request, ignored = from_query(LLAMA | dict(query))
    assert not ignored
    return plan_splits(request)


def planned(query=(), **limits):
    """A plan, kept for the tests that ask for it again."""
    stated = {f"objective.limits.{name}": value for name, value in limits.items()}
    return _planned(*(dict(query) | stated).items())


def test_splits_that_divide_nothing_are_not_counted_and_runs_are_what_can_run():
    every = planned({"workload.max_context": "24576"})
    never = ~legal_rows(every)
    assert set(every.columns["tp"][never].tolist()) == {3, 5, 6, 7}
    assert not every.feasible[never].any()
    held, doubtful = int(every.holds.sum()), int((every.feasible & every.uncertain).sum())
    of = int(legal_rows(every).sum())
    assert of < len(every)
    said = f"{held} of {of} legal layouts hold the load · {doubtful} may not start"
    assert words.split_counts_text(every) == said
    assert set(RULE_TITLES) >= NEVER
    assert not any(code == "memory" or code.startswith("limit") for code in NEVER)
    run = planned(RUN | {"workload.tokens": "1e10", "hardware.nodes": "8"})
    said = r"([\d,]+) of [\d,]+ legal layouts can run · ([\d,]+) may not start"
    counted = re.fullmatch(said, words.split_counts_text(run)).groups()
    doubtful = int(run.uncertain.sum())
    assert counted == (f"{int(run.feasible.sum()) - doubtful:,}", f"{doubtful:,}")


def test_the_best_says_devices_figures_and_how_sure_it_is():
    limited = planned(
        COST | {"objective.confidence": "0.5", "workload.concurrency": "48"}, tpot_ms="33"
    )
    said, row = plan_verdict(limited), limited.best_row
    assert (said.state, said.best, said.doubtful) == ("holds", True, True)
    assert said.subject == "TP 4 · 4 of 8 × H100 SXM5"
    chance = float(limited.chances[row])
    assert f"holds 33 ms per token with {chance * 100:.0f} %" in said.line
    assert "within the limit" in said.counts
    assert words.main_figures(limited, row)[:2] == ["usd", "tpot"]  # what is limited comes next
    assert re.search(r"30\.\d ms, likely \d\d\.\d to \d\d\.\d ms; limit 33", said.facts[-1])
    sure = planned(LOADED | {"objective.confidence": "0.8"}, tpot_ms="60", ttft_ms="5000")
    assert "within the limits, 80 % sure" in words.split_counts_text(sure)
    held = "holds 5 s to first token and 60 ms per token with "
    assert words.limits_text(sure, sure.best_row).startswith(held)
    asked = planned(COST | {"workload.concurrency": "48"}, tpot_ms="33")
    assert asked.best_row != row
    assert plan_verdict(asked).doubtful is False
    refused = find_row(asked, row_key(limited, row))
    short = f"with {chance * 100:.0f} %, short of 80 %"
    assert words.limits_text(asked, refused) == f"holds 33 ms per token {short}"


def test_a_start_is_said_with_its_memory_and_probability_for_runs_and_where_it_is_in_doubt():
    run = planned(RUN | {"workload.tokens": "1e10", "hardware.nodes": "8"})
    starts = run.columns["start_probability"]
    sure, doubtful = run.best_row, int(np.flatnonzero(run.uncertain & (starts < 0.5))[0])
    assert starts[sure] >= SURE > starts[doubtful]
    for row in (sure, doubtful):
        peak, usable = (
            float(run.columns[name][row]) / 2**30 for name in ("peak_memory_bytes", "usable_bytes")
        )
        chance = units.chance_text(float(starts[row]))
        assert (
            words.starts_text(run, row) == f"{peak:.1f} of {usable:.1f} GiB: starts with {chance}"
        )
        assert words.starts_text(run, row) in plan_verdict(run, row).line
    assert (plan_verdict(run).state, plan_verdict(run, doubtful).state) == ("holds", "uncertain")
    assert plan_verdict(run, doubtful).doubtful
    refused = int(np.flatnonzero(~run.runs)[0])
    assert words.starts_text(run, refused) == ""
    served = planned({"workload.max_context": "24576"})
    assert words.starts_text(served, served.best_row) == ""
    close = int(np.flatnonzero(served.uncertain)[0])
    text = r"7\d\.\d of 72\.8 GiB: starts with \d\d %"
    assert re.fullmatch(text, words.starts_text(served, close))


def test_a_plan_says_ranges_limits_loads_and_money_by_the_hour_and_the_month():
    free = planned()
    best, other = free.best_row, int(free.order[1])
    assert words.limits_text(free, best) == words.figure_range_text(free, "gpus", best) == ""
    assert "limit" not in words.split_counts_text(free)
    said = words.figure_range_text(free, "tpot", best)
    assert re.fullmatch(r"Time per output token: \S+ ms, likely \S+ to \S+ ms", said)
    chosen = plan_verdict(free, other)
    assert not chosen.best
    assert chosen.subject.startswith(split_label(free, other).split(" · ")[0])
    searched = planned(tpot_ms="40")
    load = int(searched.columns["load"][searched.best_row])
    assert searched.request.load_searched
    assert plan_verdict(searched).subject.endswith(f" · {load:,} users at once")
    assert "hold a load within the limit" in plan_verdict(searched).short_counts
    assert plan_verdict(planned(COST)).subject.count("users at once") == 0
    several = planned({"options.loads": "16,64"})
    assert re.search(r"· (16|64) users at once$", plan_verdict(several).subject)
    cheap = planned(COST)
    row = cheap.best_row
    hour = float(cheap.raw("usd_hour")[row])
    text = words.money_text(cheap, row)
    assert text.startswith(f"{used_devices_text(cheap, row)}: ${hour:.3g} an hour, $")
    month = float(re.search(r"\$([\d,]+) a month", text)[1].replace(",", ""))
    assert month == pytest.approx(hour * HOURS_PER_MONTH, rel=0.01)
    unpriced = planned({"hardware.device": "gh200-144gb", "hardware.per_node": "4"})
    assert words.money_text(unpriced, unpriced.best_row) == ""


def test_the_best_that_queues_says_what_it_holds_and_nothing_that_runs_names_the_nearest():
    full = planned({"hardware.per_node": "4", "workload.concurrency": "512"})
    assert full.queues[full.best_row]
    said = plan_verdict(full)
    assert (said.state, said.doubtful) == ("queues", True)
    assert re.search(r"holds \d+ of 512 at once", said.line)
    assert re.match(r"0 of .* · \d+ starts? and queues?\b", said.counts)
    for query, start in table("words", "nothing"):
        none = planned(query)
        said = plan_verdict(none)
        assert said.state == "nothing"
        assert said.counts.startswith(start)
        assert said.subject.startswith("Nearest is ")
        assert said.line.startswith(row_reasons(none, nearest_row(none))[0])


def test_every_word_of_the_field_is_explained_in_the_file():
    terms = glossary.glossary().terms
    texts = "\n".join(f"{term.title} {term.text}" for term in terms.values()).casefold()
    assert [word for word in table("words", "needed") if word.casefold() not in texts] == []
    for name, term in terms.items():
        assert set(term.fields) <= set(FIELDS), name
        assert term.text.count(". ") <= 2, f"{name} takes more than a few sentences"


def test_help_is_the_term_s_text_and_a_mistake_in_the_file_is_named():
    ttft, field = glossary.glossary().terms["ttft"].text, "objective.limits.ttft_ms"
    assert column_metric("ttft_s").help == ttft == glossary.term_help("ttft")
    assert glossary.field_help(field).startswith(plain_help(describe_field(field)))
    assert ttft in glossary.field_help(field)
    assert glossary.field_help("hardware.nodes") == plain_help(describe_field("hardware.nodes"))
    assert all(metric.help for metric in metrics() if metric.kinds and metric.name != "load")
    file = DataFile(glossary.FILE, "glossary")
    wrong_source = file.read()["terms"]["tp"]["source"] | {"url": "http://x"}
    for wrong, message in (*table("words", "mistakes"), ({"source": wrong_source}, "source.url")):
        document = file.read()
        document["terms"]["tp"].update(wrong)
        assert message in str(refusal(file.validated, document, glossary.Glossary))
