"""Kept choices beside each other: what is said of each, of their differences, and in files."""

import io
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.plans.plan_json import measure_text
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.rank import NO_DIFFERENCE
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT, link_omissions
from recipe_core.targets.by_hand import start_command, start_words
from recipe_core.views import side_by_side as side
from recipe_core.views.charts.measured import choice_points
from recipe_core.views.columns import csv_bytes, parquet_bytes
from recipe_core.views.plan_words import plan_band_text
from recipe_core.views.side_by_side import NOTHING, Choice, value
from tests.conftest import LLAMA_70B
from tests.fixtures.rows import table

EIGHT = {"model": LLAMA_70B}


def asked(split, fields):
    request = change(DEFAULT, fields)
    return change(request, select_split(request, split))


REQUESTS = {name: asked(*row) for name, row in table("side_by_side", "requests").items()}


@cache
def choice(name):
    if name == "lost":
        return Choice(name, REQUESTS["eight"], error="no such model.")
    return evaluated(name, REQUESTS[name])


def evaluated(name, request):
    return Choice(name, request, *plan_candidate(request))


def choices(*names):
    return [choice(name) for name in names]


def line(lines, title):
    return next(line for line in lines if line.title == title)


def test_facts_and_states_say_what_each_choice_is():
    for names, title, said in table("side_by_side", "facts"):
        found = line(side.compare_facts(choices(*names)), title)
        assert [cell.text for cell in found.cells] == [text or NOTHING for text in said], title
        assert found.differs == (len(set(said)) > 1)
    lines = side.compare_facts(choices("eight", "four"))
    assert line(lines, "Engine").cells[0].text.startswith("vLLM ")
    assert "Kind" not in [line.title for line in lines]
    several = choices("eight", "lost")
    figures = side.compare_figures(several, baseline=1)
    assert line(figures, "Throughput").cells[1].text == NOTHING
    assert figures[0].cells[0].difference == ""
    assert side.choices_frame(several)["state"][1] == side.choice_state(choice("lost"))
    for name, said in table("side_by_side", "states").items():
        assert side.choice_state(choice(name)).startswith(said), name
        assert choice(name).holds == (name in ("eight", "run"))


def test_figures_are_the_plans_with_bands_and_differences_to_the_baseline():
    several = choices("eight", "four")
    lines = side.compare_figures(several)
    for n, kept in enumerate(several):
        for name, measure in kept.plan.measures.items():
            if name not in ("gpus", "load"):
                cell = line(lines, measure.title).cells[n]
                assert cell.text == measure_text(kept.plan, name, kept.row)
                assert cell.band == (plan_band_text(kept.plan, name, kept.row) or "")
    month = float(line(lines, "Cost per month").cells[0].text.strip("$").replace(",", ""))
    assert month == pytest.approx(value(several[0], "Cost per hour") * HOURS_PER_MONTH, rel=0.001)
    for baseline in (0, 1):
        cells = line(side.compare_figures(several, baseline), "Throughput").cells
        ratio = value(several[1 - baseline], "Throughput") / value(several[baseline], "Throughput")
        assert cells[baseline].difference == ""
        shown = float(cells[1 - baseline].difference.replace("−", "-").removesuffix(" %"))
        assert shown == pytest.approx((ratio - 1) * 100, abs=0.5)
    for *amounts, said in table("side_by_side", "differences"):
        amounts = [np.nan if amount is None else amount for amount in amounts]
        assert side.difference_text(*amounts) == said, amounts


def test_only_what_holds_its_load_is_best_and_the_chance_is_that_of_the_plans():
    lines = side.compare_figures(choices("four", "queues", "eight"))
    assert not any(shown.cells[1].best for shown in lines)
    for title, best in table("side_by_side", "best").items():
        assert [cell.best for cell in line(lines, title).cells] == best
    for alone in (choices("eight"), choices("eight") * 2):
        assert not any(cell.best for shown in side.compare_figures(alone) for cell in shown.cells)
    several = choices("eight", "four", "queues", "run")
    row, swapped = side.chances(several), side.chances(several, baseline=1)
    assert row.title == "Measures better by: throughput"
    assert [row.cells[n].text for n in (0, 2, 3)] == ["baseline", NOTHING, NOTHING]
    ahead, behind = (float(cell.text.strip("<>%")) for cell in (swapped.cells[0], row.cells[1]))
    assert ahead + behind == pytest.approx(100, abs=1)
    assert side.chances(choices("eight", "run")) is None


def test_engines_on_one_layout_have_no_difference_of_what_is_optimised_and_none_is_best():
    other = evaluated("other", asked("tensorrt-llm.bf16.bf16.tp8.pp1.dp1.ep1", EIGHT))
    several = [choice("eight"), other]
    assert side.chances(several).cells[1].text.endswith(f" · {NO_DIFFERENCE}")
    lines = {shown.title: shown for shown in side.compare_figures(several)}
    assert lines["Throughput"].cells[1].difference == NO_DIFFERENCE
    assert not any(cell.best for cell in lines["Throughput"].cells)
    first = lines["Time to first token"].cells  # nothing is optimised by it
    assert first[1].difference not in ("", NO_DIFFERENCE)
    assert [cell.best for cell in first].count(True) == 1
    beside = side.compare_figures([choice("queues"), other, choice("eight")])
    marks = [cell.best for cell in line(beside, "Throughput").cells]
    assert not any(marks)  # what queues is not compared
    three = side.compare_figures([choice("four"), other, choice("eight")], baseline=2)
    assert [cell.best for cell in line(three, "Throughput").cells] == [False, True, True]


def test_serving_and_training_share_few_figures_and_cautions_name_what_differs():
    several = choices("eight", "run")
    lines = side.compare_figures(several)
    shared = {line.title: line for line in lines if NOTHING not in [c.text for c in line.cells]}
    assert shared.keys() == {"Cost per hour", "Cost per month", "Power of the devices"}
    assert not any(cell.best for shown in shared.values() for cell in shown.cells)
    assert "are of different things" in side.cautions(several)[0]
    assert side.cautions(choices("eight", "four")) == []
    assert "differ in model:" in side.cautions(choices("eight", "amd"))[0]
    copy = {"model": "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8"}
    eight_bits = evaluated("copy", asked("vllm.int8.bf16.tp8.pp1.dp1.ep1", copy))
    assert side.cautions([choice("eight"), eight_bits]) == []  # a copy is no other model
    other = evaluated("other", change(REQUESTS["eight"], {"workload.concurrency": 8}))
    assert "differ in load:" in side.cautions([choice("eight"), other])[0]
    private = change(REQUESTS["eight"], {"options.environment": {"TOKEN": "secret"}})
    assert side.cautions([evaluated("private", private)]) == [link_omissions(private)]


def test_commands_are_compared_option_by_option():
    lines = side.command_lines([start_words(REQUESTS[name]) for name in ("eight", "four")])
    differing = [(line.title, [cell.text for cell in line.cells]) for line in lines if line.differs]
    assert differing == [("--tensor-parallel-size", ["8", "4"])]
    assert line(lines, "program").cells[0].text == f"vllm serve {LLAMA_70B}"
    rows = side.command_lines([["A=1", "run", "--x 1", "--flag", "-5", "--y=2"], ["run", "--x 2"]])
    assert {row.title: [cell.text for cell in row.cells] for row in rows} == {
        name: [text or NOTHING for text in said]
        for name, said in table("side_by_side", "options").items()
    }
    for kept in choices("eight", "amd", "run"):
        typed = start_command(kept.plan, kept.row).replace("\\\n", " ").split()
        assert " ".join(start_words(kept.request)).split() == typed
    groups = side.by_engine(choices("eight", "amd", "four"))
    assert [len(group) for group in groups.values()] == [2, 1]


def test_files_hold_every_figure_with_its_band_and_no_name_as_a_formula():
    names = ["eight", "queues", "refused", "amd", "run"]
    several = choices(*names)
    written = side.choices_frame(several)
    assert list(written["name"]) == names
    assert written["tpot_s"][0] == value(several[0], "Time per output token")
    assert written["tpot_s_low"][0] < written["tpot_s"][0] < written["tpot_s_high"][0]
    assert np.isnan([written["step_s"][0], written["tpot_s"][4], written["tpot_s"][2]]).all()
    assert written["devices_there"][3] == 8
    months = (written["usd_per_hour"] * HOURS_PER_MONTH).to_numpy()
    assert written["usd_per_month"].to_numpy() == pytest.approx(months, nan_ok=True)
    read = pd.read_parquet(io.BytesIO(parquet_bytes(written)))
    pd.testing.assert_frame_equal(read, written)
    read = pd.read_csv(io.BytesIO(csv_bytes(written)))
    assert read["tpot_s"].to_numpy() == pytest.approx(written["tpot_s"].to_numpy(), nan_ok=True)
    names = ["=1+1", "+1", "-1", "@x", '=HYPERLINK("http://e.example")', "plain"]
    several = [Choice(name, REQUESTS["eight"], error="=cmd") for name in names]
    read = pd.read_csv(io.BytesIO(csv_bytes(side.choices_frame(several))))
    assert list(read["name"]) == [*(f"'{name}" for name in names[:-1]), "plain"]
    assert not any(text.startswith(("=", "+", "-", "@")) for text in read["state"])


def test_the_chart_marks_bands_and_states_and_reads_no_name_as_markup():
    hostile = replace(choice("four"), name='<a href="http://e.example">x</a>')
    several = [*choices("eight", "queues", "run"), hostile]
    title = "Time per output token"
    whole = json.loads(choice_points(several, title).to_json())
    held, others = whole["data"]
    assert held["name"].startswith("holds")
    assert others["marker"]["symbol"] == "diamond"
    assert whole["layout"]["yaxis"]["tickvals"] == [0, 1, 3]  # a run has no such figure
    assert "<a" not in json.dumps(whole)
    assert held["x"][0] == pytest.approx(value(several[0], title) * 1e3)
    assert held["error_x"]["array"][0] > 0
    for name in side.measures(several):
        choice_points(several, name, baseline=3, dark=True).to_json()
