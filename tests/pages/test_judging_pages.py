"""The check of commands, formats, the evidence, and kept choices.

``test_sessions.py`` has more of commands.
"""

from __future__ import annotations

import datetime
import re
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.place import VARIABLE
from recipe_core.calibration.residuals import measured_of_rows
from recipe_core.calibration.store import Incoming, Overlay
from recipe_core.compression.advisor.advise import formats_answer
from recipe_core.doors.settings import variable
from recipe_core.estimates.measured import runs as measured_runs
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.request.packed import pack_values
from recipe_core.request.shelf import (
    MAX_KEPT,
    Kept,
    Shelf,
    keep_choice,
    remove_from_shelf,
    shelf_of,
    shelf_query,
)
from recipe_core.views import formats as view
from tests.fixtures.opening import (
    LLAMA_70B,
    PAGES,
    TP4,
    TP8,
    assert_says,
    chosen,
    codes,
    edited,
    figure,
    opened,
    press,
    put,
    query_of,
    words,
)

PUBLISHED = measured_runs.published_runs()
SERVE = {
    "model": LLAMA_70B,
    "hardware.per_node": "4",
    "objective.optimize": "cost",
    "objective.limits.accuracy_recovery": "0.98",
}


def test_both_memory_figures_are_explained_beside_each_other() -> None:
    app = put(opened("check.py"), "command", f"vllm serve {LLAMA_70B}")
    figures = {metric.label: metric.value for metric in app.metric}
    load, start = figures["Memory for the load"], figures["Memory to start"]
    assert load != start
    assert_says(
        app,
        f"{load} would hold the load, 64 requests of 1,280 tokens, at once.",
        f"{start} is what the engine needs to start",
        "one request of 131,072 tokens",
        f"needs {start} per GPU to start",  # the reason has the same figure
        "That is more than the 72.8 GiB that are usable.",
    )


def test_a_command_is_rewritten_by_few_words_and_opens_as_the_plan_of_what_it_states() -> None:
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960 --max-num-seqs 256 -q fp8"
    app = put(opened("check.py", **{"hardware.per_node": "4"}), "command", command)
    assert codes(app) == ["+ --data-parallel-size 2", f"{command} --data-parallel-size 2"]
    assert_says(app, "vLLM 0.32", "A better layout")
    assert "vllm 0" not in words(app)
    press(app, "to-builder")
    assert app.session_state["page"] == "plan.py"
    link = query_of(app)
    stated = {
        "model": "Qwen/Qwen3-32B",
        "options.engines": "vllm",
        "options.weight_dtypes": "fp8",
        "workload.max_context": "40960",
        "candidate.max_num_seqs": "256",
        "candidate.tp": "2",
        "hardware.per_node": "4",
    }
    assert stated.items() <= link.items()


def test_a_misspelt_option_is_corrected_and_shown_as_what_changes() -> None:
    start = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4"
    app = put(opened("check.py", **{"hardware.per_node": "4"}), "command", f"{start} --dtpye auto")
    assert codes(app)[:2] == ["- --dtpye auto\n+ --dtype auto", f"{start} --dtype auto"]
    assert_says(app, "It starts with --dtype auto instead of --dtpye")
    assert "can run it" not in words(app)


# Formats


@pytest.fixture(scope="module")
def formats() -> AppTest:
    return opened("plan.py", lens="formats", **SERVE)


def test_the_lens_on_formats_shows_what_the_core_answers(formats: AppTest) -> None:
    answer = formats_answer(from_query(SERVE)[0].to_json())
    best = view.best_technique(answer)
    assert best is not None
    assert f"**{view.technique_title(best)}**" in words(formats)
    table = formats.dataframe[0].value
    assert table["Technique"].tolist() == [row["title"] for row in view.usable_formats(answer)]
    assert table["Accuracy kept"].tolist()[0] == view.kept_accuracy(best)


def test_every_point_has_a_band(formats: AppTest) -> None:
    drawn = [trace for trace in figure(formats, "formats-accuracy")["data"] if "error_y" in trace]
    assert {trace["name"] for trace in drawn} >= {"Weights", "KV cache"}


def test_a_least_accuracy_that_is_none_is_refused_with_its_name_value_and_range(
    formats: AppTest,
) -> None:
    field = "_objective.limits.accuracy_recovery"
    (error,) = put(formats, field, "1e9").error
    assert error.value.startswith(r"Least accuracy kept\: '1e9' is out of range.")
    assert "Type a number above 0 and at most 100, in %. 98 stays in effect." in error.value
    assert query_of(put(formats, field, "97.5 %"))[field[1:]] == "0.975"


def test_a_refused_technique_says_why_and_the_best_goes_into_the_request() -> None:
    app = put(opened("plan.py", lens="formats", **SERVE), "formats-every", True)
    table = app.dataframe[0].value
    reasons = table.set_index("Technique")["Why not"]
    assert reasons["Unstructured sparsity"].startswith("Zeros are")
    before = app.session_state["request"]
    request = press(app, "formats-use-best").session_state["request"]
    assert request.options.weight_dtypes != ("auto",) or request.model != LLAMA_70B
    assert press(app, "undo").session_state["request"] == before
    training = opened(
        "plan.py", lens="formats", **{"workload.kind": "training", "model": LLAMA_70B}
    )
    assert "served" in words(training)
    assert not training.dataframe
    assert query_of(press(training, "formats-serve")).get("workload.kind") is None
    assert training.dataframe


# Measured runs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the calibration lies."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def calibration(place: Path) -> Overlay:
    """Twelve published runs as one's own."""
    rows = [run for run in PUBLISHED if run.device == "mi300x" and not run.exclude][:12]
    runs = [Incoming(run, "runs.csv", "table") for run in measured_of_rows(rows)]
    return Overlay.at(place).add(runs).overlay


def tables(app: AppTest, column: str) -> list[pd.DataFrame]:
    """The tables of a page that have a column."""
    return [frame.value for frame in app.dataframe if column in frame.value]


def test_published_runs_are_read_not_predicted_and_sources_have_their_dates(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise AssertionError("runs are predicted while a page is drawn")

    opened("evidence.py")  # imports what it needs
    monkeypatch.setattr(sys.modules["_measured_answer"], "compare_runs", nobody)
    begun = time.process_time()
    app = opened("evidence.py")
    assert time.process_time() - begun < 2.0
    points = figure(app, "measured-scatter")["data"][1:]
    assert sum(len(trace["x"]) for trace in points) > 100
    runs = " ".join(app.selectbox(key="measured-run").options)
    assert "tokens: " in runs
    assert not re.search(r"-[0-9a-f]{10}\b", runs)
    assert "h100-sxm" not in runs
    assert not re.search(r"\b(vllm|sglang|tensorrt-llm):", runs)
    (prices,), (devices,) = tables(app, "Provider"), tables(app, "Speeds")
    assert (prices["Offers"].sum(), len(prices)) == (1122, 39)
    assert prices["Newest"].str.match(r"\d{4}").all()
    assert (devices["Speeds"] == "measured or fitted on it").sum() >= 10


def test_own_runs_stand_beside_their_predictions(calibration: Overlay) -> None:
    app = opened("evidence.py")
    assert "of 12 runs count; median error" in words(app)
    before = figure(app, "measured-scatter")
    assert sum(len(trace["x"]) for trace in before["data"][1:]) > 0
    answers = sys.modules["_measured_answer"].compared_runs
    calculated = answers.cache_info().misses
    assert figure(put(app, "measured-which", "formulas"), "measured-scatter") != before
    put(app, "measured-group", "Model")
    assert answers.cache_info().misses == calculated
    (factors,) = tables(app, "Time of")
    assert set(factors["Time of"]) <= {"Decode steps", "Prompts"}
    assert factors["Credibility"].between(0.01, 1).all()
    (kept,) = tables(app, "Counts until")
    assert set(kept["Device"]) == {"Instinct MI300X 192 GB"}
    assert kept["Engine"].str.match(r"(vLLM|SGLang) \S").all()
    assert set(kept["Name"]) == {entry.name for entry in calibration.entries}
    assert not {entry.id for entry in calibration.entries} & set(re.findall(r"\w+", words(app)))
    assert "runs count" not in words(put(app, "measured-whose", "Published"))


def dropped(app: AppTest, name: str, data: bytes) -> AppTest:
    return app.file_uploader[0].set_value((name, data, "text/csv")).run()


def test_dropped_runs_are_previewed_and_kept_where_nobody_else_may_call(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [run for run in PUBLISHED if run.device == "mi300x" and not run.exclude][:12]
    text = table_text(rows).encode()
    runs = [Incoming(run, "mine.csv", "table") for run in measured_of_rows(rows)]
    counting = sum(entry.counts for entry in Overlay.at(place).add(runs, dry=True).entries)
    assert 0 < counting < 12
    app = dropped(opened("evidence.py"), "mine.csv", text)
    said = f"{counting} of 12 new runs would count. The answer stays as it is: TP 4 × DP 2, "
    assert said in words(app)
    assert "keeps no runs" in words(app)
    assert "keep-runs" not in {button.key for button in app.button}
    monkeypatch.setenv(variable("folders"), "1")
    app = dropped(opened("evidence.py"), "mine.csv", text)
    (columns,) = tables(app, "From")
    assert set(columns["From"]) == {"the file"}
    assert {"model", "tp", "tpot_ms"} <= set(columns["Column"])
    (preview,) = tables(app, "Counts until")
    assert (preview["State"] == "counts").sum() == counting
    app.button(key="keep-runs").click().run()
    assert {run.name for run in Overlay.at(place).entries} == {run.id for run in rows}
    assert f"{counting} of 12 runs count" in words(app)
    assert not app.file_uploader[0].value
    again = dropped(app, "mine.csv", text)
    assert "0 of 0 new runs would count; 12 are kept already" in words(again)
    again.button(key="undo-runs").click().run()
    assert Overlay.at(place).entries == ()
    assert "is not UTF-8 text" in words(dropped(opened("evidence.py"), "x.csv", b"\xff\xfe"))


def test_a_damaged_calibration_is_named(place: Path) -> None:
    (place / "calibration.json").write_text("{")
    assert "is damaged" in words(opened("evidence.py"))


def test_checkpoints_that_were_made_stand_beside_what_was_expected(place: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    run = MeasuredCompression(
        "Qwen/Qwen3-8B", "int4_weight_only", "GPTQ", 0.97, None, 2048, today, text="own.txt"
    )
    Overlay.at(place).add([Incoming(run, "bundle", "bundle")])
    app = opened("evidence.py")
    assert "No runs of your own yet" in words(app)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["State"], row["Perplexity kept"], row["Tokens"]) == ("counts", 0.97, 2048)
    assert "–" in row["Expected (80 % band)"]
    assert row["In band"] in ("yes", "no")


# Kept choices: keeping, names, links, and what the links no longer hold

EIGHT = chosen(TP8, {"model": LLAMA_70B})
AMD = chosen(TP4, {"hardware.device": "mi300x", "workload.concurrency": 16})
RUN = "torchtitan.bf16.tp1.pp1.v1.cp1.ep1.dp8.z3.mb2.full"
TWO = keep_choice(keep_choice((), EIGHT), AMD)


def side(shelf: Shelf, **query: str) -> AppTest:
    return opened("side.py", **shelf_query(shelf), **query)


def compared(app: AppTest, place: int = 0) -> dict[str, list[str]]:
    """A table of the page by its first column, without Markdown's escapes."""
    frame = app.table[place].value
    return {
        str(cells[0]).replace("\\", ""): [str(cell).replace("\\", "") for cell in cells[1:]]
        for cells in frame.itertuples(index=False)
    }


def kept_of(app: AppTest) -> list[str]:
    return [kept.name for kept in app.session_state["kept"]]


def test_a_pin_is_kept_and_survives_another_model_and_device() -> None:
    app = opened("plan.py", model=LLAMA_70B, pins=TP8)
    assert press(app, f"keep-{TP8}").button(key=f"keep-{TP8}").disabled
    app.switch_page("model.py").run()
    put(app, "model-text", "Qwen/Qwen3-32B").switch_page("hardware.py").run()
    edited(app, {"hardware.device": "mi300x"}).switch_page("ship.py").run()
    press(app, "keep").switch_page("side.py").run()
    rows = compared(app)
    assert rows["Model"] == [LLAMA_70B, "Qwen/Qwen3-32B"]
    assert [text.split(" × ")[1] for text in rows["Devices"]] == ["H100 SXM5", "MI300X"]
    assert "%" in rows["Throughput"][1]
    shelf, ignored = shelf_of(query_of(app))
    assert (ignored, [kept.name for kept in shelf]) == ([], kept_of(app))


def test_a_link_restores_names_figures_and_the_difference() -> None:
    shelf = (Kept("ours", EIGHT), Kept("theirs, cheap", AMD))
    app = side(shelf)
    assert not app.warning[0].value.startswith("**Parts")
    rows = compared(app)
    assert list(app.table[0].value.columns[1:]) == ["ours", "theirs, cheap"]
    assert re.search(r" ms +\n[\d.]+ – [\d.]+ ms$", rows["Time per output token"][0])
    assert "State: holds the load" in words(app)
    swapped = compared(put(app, "_baseline", 1))["Time per output token"]
    assert [cell.count("\n") for cell in swapped] == [2, 1]


def choice(app: AppTest, place: int) -> AppTest:
    """The page with the details of a choice open."""
    app.session_state[f"choice-{place}"] = True
    return app.run()


def test_a_name_is_edited_in_place_and_a_bad_one_is_refused() -> None:
    app = side(TWO)
    assert kept_of(put(choice(app, 0), "_name-0", "  the one  "))[0] == "the one"
    assert shelf_of(query_of(app))[0][0].name == "the one"
    assert "name of another choice" in put(choice(app, 1), "_name-1", "the one").error[0].value
    assert (kept_of(app)[1], app.text_input(key="_name-1").value) == (TWO[1].name, TWO[1].name)


def test_a_removed_choice_leaves_the_link_and_the_baseline_where_it_was() -> None:
    shelf = keep_choice(TWO, chosen(RUN, {"workload.kind": "training"}))
    app = put(side(shelf), "_baseline", 2)
    assert kept_of(press(choice(app, 0), "remove-0")) == [
        kept.name for kept in remove_from_shelf(shelf, 0)
    ]
    assert app.selectbox(key="_baseline").value == 1
    assert press(choice(app, 1), "remove-1").session_state["baseline"] == 0
    assert "kept" not in query_of(press(choice(app, 0), "remove-0"))


def test_a_choice_becomes_the_request_and_what_is_kept_stays() -> None:
    app = side(TWO)
    assert press(choice(app, 1), "ship.py-1").session_state["page"] == "ship.py"
    assert (from_query(query_of(app))[0], len(shelf_of(query_of(app))[0])) == (AMD, 2)
    app.switch_page("side.py").run()
    assert press(choice(app, 0), "plan.py-0").session_state["request"] == EIGHT


def test_commands_differ_option_by_option_and_what_is_the_same_is_listed_or_shown() -> None:
    app = side((Kept("eight", EIGHT), Kept("four", chosen(TP4, {"model": LLAMA_70B}))))
    assert compared(app, 1) == {"--tensor-parallel-size": ["8", "4"]}
    assert f"vllm serve {LLAMA_70B}" in "\n".join(code.value for code in app.code)
    assert "The same for all" in words(app)
    assert "Model" not in compared(app)
    assert compared(put(app, "differing", False))["Model"] == [LLAMA_70B] * 2
    assert "–" not in compared(put(app, "ranges", False))["Time per output token"][0]


def test_a_choice_that_can_no_longer_be_evaluated_says_why() -> None:
    gone = EIGHT.model_copy(update={"model": "nobody/nothing"})
    app = side((Kept("gone", gone), Kept("here", AMD)))
    here, there = compared(app)["State"]
    assert "cannot be evaluated" in here
    assert "holds the load" in there


def test_a_ninth_choice_is_refused_in_words() -> None:
    shelf: Shelf = ()
    for load in range(1, MAX_KEPT + 1):
        shelf = keep_choice(shelf, change(EIGHT, {"workload.concurrency": load}), str(load))
    app = opened("plan.py", pins=TP8, **shelf_query(shelf))
    assert "the most that may be" in press(app, f"keep-{TP8}").error[0].value
    assert len(app.session_state["kept"]) == MAX_KEPT


def test_what_a_link_keeps_and_nobody_can_read_is_named() -> None:
    bad = pack_values([["bad", {**TWO[0].query, "hardware.device": "h100-smx"}]])
    for text, said in (("~1.AAAA", "cut off or changed"), (bad, "bad was left out")):
        app = opened(kept=text)
        assert said in app.warning[0].value.replace("\\", "")
        assert "kept" not in query_of(app)
    app.switch_page("side.py").run()
    assert app.session_state["page"] == "side.py"
    assert "Nothing is kept yet" in words(app)
    assert not app.table


def test_a_pin_that_left_the_plan_is_kept_by_a_click_where_the_session_knows_it() -> None:
    app = opened("plan.py", pins=f"{TP8},{TP4}")
    edited(app, {"hardware.per_node": 4})
    assert "is no longer a layout of this plan" in words(app)
    assert query_of(app)["pins"] == TP4
    (kept,) = press(app, f"keep-{TP8}").session_state["kept"]
    assert (kept.request.hardware.per_node, kept.request.candidate.tp) == (8, 8)
    edited(app, DEFAULT)
    assert query_of(app)["pins"] == f"{TP8},{TP4}"


@pytest.mark.nightly
def test_every_page_has_a_link_to_copy() -> None:
    app = opened(hardware_chosen=False, model=LLAMA_70B, **shelf_query(TWO))
    for page in (*PAGES, "home.py", "side.py", "evidence.py", "check.py"):
        app.switch_page(page).run()
        (link,) = [code.value for code in app.code if "?v=1&" in code.value]
        assert "model=meta-llama%2FLlama-3.1-70B-Instruct&" in link
        assert "&kept=~1." in link
