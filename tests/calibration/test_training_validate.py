"""Training estimates against the published runs that are shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.base.documents import read_document
from recipe_core.calibration.training_validate import (
    compare_training,
    training_sections,
    training_validation_text,
)
from recipe_core.measured.training_runs import (
    TRAINING_RUNS,
    TrainingRun,
    known_training_runs,
    published_training_runs,
    read_training_runs,
)
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal

ONE = next(run for run in published_training_runs() if run.source == "torchtitan")


def test_each_source_says_whose_it_is_and_an_unknown_column_is_refused() -> None:
    known = read_document(TRAINING_RUNS.with_name("training_sources.yaml"))
    runs = (*published_training_runs(), *known_training_runs())
    assert {run.source for run in runs} <= set(known)
    assert all(run.reference for run in runs)
    found = compare_training(published_training_runs()[:20])
    assert published_training_runs()[0].source in training_validation_text(found)
    assert "unknown column" in str(refusal(training_sections, found, by="colour"))


def test_shipped_runs_are_met() -> None:
    """What docs/accuracy.md says of all data holds of the shipped share of it, with some room."""
    found = compare_training(published_training_runs())
    figures = training_sections(found)["figures"].set_index("figure")
    assert figures.loc["step_s", "median"] < 0.14
    assert figures.loc["peak_memory_gib", "median"] < 0.12
    assert len(found.refused) < 0.05 * found.runs


def test_a_run_is_asked_for_as_it_ran() -> None:
    request = ONE.request()
    assert request["candidate"]["dp"] == ONE.dp
    assert request["model"]["intermediate_size"] == ONE.ffn
    rate = ONE.tokens_per_s_per_gpu * ONE.nodes * ONE.per_node
    assert ONE.measured_step_s == pytest.approx(ONE.global_batch * ONE.sequence_length / rate)


def test_what_the_driver_shows_is_more_than_what_is_allocated() -> None:
    run = ONE.model_copy(update={"peak_memory_gib": 50.0})
    plain, driver = (
        compare_training([run.model_copy(update={"memory_of": name})]).figures
        for name in ("fullest", "driver")
    )
    estimated = [rows.set_index("figure").estimated["peak_memory_gib"] for rows in (plain, driver)]
    assert 0.5 < estimated[1] - estimated[0] < 4


def test_a_run_that_does_not_say_what_it_recomputed_gets_the_least_that_fits() -> None:
    full = ONE.model_copy(update={"micro_batch": 16, "global_batch": 16 * ONE.dp})
    none, least, all_ = (
        compare_training([full.model_copy(update={"recompute": name})])
        for name in ("none", None, "full")
    )
    assert (len(none.refused), len(least.refused), len(all_.refused)) == (1, 0, 0)
    peaks = least.figures.estimated.tolist(), all_.figures.estimated.tolist()
    assert peaks[0] == peaks[1]


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    row = {name: value for name, value in ONE.model_dump().items() if value is not None}
    table = tmp_path / "runs.csv"
    table.write_text(",".join(row) + "\n" + ",".join(f'"{value}"' for value in row.values()) + "\n")
    assert read_training_runs(table) == [ONE]
    done = recipe("validate", "--training", str(table), "--json")
    assert json.loads(done.stdout)["runs"] == 1
    table.write_text("id,model\n1,x\n")
    assert "columns are missing" in str(refusal(read_training_runs, table))
    nothing = dict.fromkeys(("step_s", "tokens_per_s_per_gpu", "peak_memory_gib"))
    with pytest.raises(ValueError, match="nothing was measured"):
        TrainingRun.model_validate(ONE.model_dump() | nothing)


def test_runs_that_everybody_knows_are_accepted_at_their_speed() -> None:
    """Llama 3 405B, DeepSeek-V3, Megatron's weak scaling: docs/accuracy.md has each."""
    runs = known_training_runs()
    found = compare_training(runs)
    assert not found.refused
    assert {run.model.partition(" ")[0] for run in runs} == {"Llama", "DeepSeek-V3", "GPT"}
    assert found.figures.error.max() < 0.2, found.figures.set_index("id").ratio
