"""The search on the real machine, against a fake engine whose speed follows from its options."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.errors import InputError
from recipe_core.bundle.verify import read_bundle
from recipe_core.recipe import make_recipe, recipe_request
from recipe_core.recipe.diff import diff
from recipe_core.trials import knobs as knobs_module
from recipe_core.trials.confirm import gain_of, order
from recipe_core.trials.errors import TrialError
from recipe_core.trials.knobs import (
    SPLIT,
    Knob,
    first_splits,
    knobs,
    recipe_at,
    recommended,
    request_at,
)
from recipe_core.trials.leftovers import MARK
from recipe_core.trials.objective import aim_of
from recipe_core.trials.study import JOURNAL, Search
from recipe_core.trials.tune import Budget, Tuned, tune
from tests.conftest import make_request
from tests.fixtures.bundles import usual_signals, with_variable
from tests.fixtures.experiments import ALONE, BENCH_S, Servers
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE, comes

QUICK = Budget(trials=6, repeats=2, splits=1)
SPACE = (
    Knob("max_num_seqs", tuple(range(9)), 4, "candidate"),
    Knob("max_batched_tokens", tuple(range(9)), 4, "candidate"),
    Knob(SPLIT, ({"tp": 1}, {"tp": 2}, {"tp": 4}), 0, SPLIT),
)


def score_of(point: dict[str, int]) -> float:
    """Known optimum: 6, 2 and the second split."""
    return (
        0.1 * abs(point["max_num_seqs"] - 6)
        + 0.05 * abs(point["max_batched_tokens"] - 2)
        + 0.3 * (point[SPLIT] != 1)
    )


def run(search: Search, trials: int) -> None:
    while len(search.done) < trials:
        asked = search.ask()
        if asked is None:
            return
        trial, point = asked
        search.tell(trial, score_of(dict(point)), 0.0, {})


def test_the_search_starts_at_the_recommended_point_and_finds_the_optimum(tmp_path):
    search = Search.opened(tmp_path, SPACE, {"recipe": "a"}, resume=False)
    run(search, 40)
    assert search.done[0].params == recommended(SPACE)
    best = search.best()
    assert best is not None
    assert best.value <= 0.1 < score_of(recommended(SPACE))
    assert len({tuple(t.params.items()) for t in search.done}) == len(search.done)


def test_a_small_space_is_searched_to_its_end(tmp_path):
    small = (Knob("max_num_seqs", (1, 2, 4), 1, "candidate"),)
    search = Search.opened(tmp_path, small, {}, resume=False)
    points = []
    while (asked := search.ask()) is not None:
        points.append(asked[1]["max_num_seqs"])
        search.tell(asked[0], float(asked[1]["max_num_seqs"]), 0.0, {})
    assert (points[0], sorted(points)) == (1, [0, 1, 2])


def test_points_beyond_the_limits_are_never_the_best(tmp_path):
    search = Search.opened(tmp_path, SPACE, {}, resume=False)
    for _ in range(20):
        trial, point = search.ask()
        search.tell(trial, score_of(dict(point)), 0.5 if point["max_num_seqs"] > 4 else 0.0, {})
    best = search.best()
    assert best is not None
    assert best.params["max_num_seqs"] <= 4


def test_a_journal_survives_a_kill_in_the_middle_of_a_line(tmp_path):
    first = Search.opened(tmp_path, SPACE, {"recipe": "a"}, resume=False)
    run(first, 3)
    _, point = first.ask()  # and killed before it was told
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "half')
    (tmp_path / f"{JOURNAL}.lock").touch()
    again = Search.opened(tmp_path, SPACE, {"recipe": "a"}, resume=True)
    assert len(again.done) == 3
    retried = again.ask()
    assert retried is not None
    assert dict(retried[1]) == dict(point)
    with pytest.raises(InputError, match="another recipe"):
        Search.opened(tmp_path, SPACE, {"recipe": "b"}, resume=True)
    assert Search.opened(tmp_path, SPACE, {"recipe": "b"}, resume=False).done == []
    assert (tmp_path / "journal-1.log").is_file()


def test_warm_ups_without_hope_are_given_up(tmp_path):
    search = Search.opened(tmp_path, SPACE, {}, resume=False)
    trial, _ = search.ask()
    assert search.give_up(trial, 0.0) is None
    search.tell(trial, 0.0, 0.0, {})
    trial, _ = search.ask()
    assert "worse than the best" in str(search.give_up(trial, 0.7))
    search.drop(trial, "slow")
    assert search.best().number == 0


# The space and the aim


@pytest.fixture(scope="module")
def on_gpus():
    return make_recipe(
        make_request(
            model="Qwen/Qwen3-8B",
            per_node=4,
            candidate={"engine": "vllm", "tp": 4, "pp": 1, "dp": 1},
            objective={"optimize": "throughput", "limits": {"tpot_ms": 30, "watts": 9000}},
        )
    )


def test_the_space_is_what_the_engine_has_options_for(on_gpus):
    space = {knob.name: knob for knob in knobs(on_gpus, 3)}
    assert set(space) == {
        *("max_num_seqs", "max_batched_tokens", "memory_fraction"),
        *("max_cudagraph_capture_size", SPLIT),
    }
    assert len(space[SPLIT].values) == 3
    assert (
        space["max_num_seqs"].values[space["max_num_seqs"].base]
        == (on_gpus.candidate["max_num_seqs"])
    )
    assert max(space["memory_fraction"].values) <= 0.97
    assert first_splits(on_gpus, 1) == [{"tp": 4, "pp": 1, "dp": 1, "ep": 1, "cp": 1}]


def test_a_point_is_a_recipe_and_what_moved_is_the_objectives_choice(on_gpus):
    space = knobs(on_gpus, 1)
    point = recommended(space)
    assert recipe_at(on_gpus, space, point) is on_gpus
    point["max_num_seqs"] += 1
    point["max_cudagraph_capture_size"] = 1
    moved = recipe_at(on_gpus, space, point)
    assert not isinstance(moved, str)
    assert moved.engine.options["max_cudagraph_capture_size"] == 64
    assert moved.provenance["candidate.max_num_seqs"] == "objective"
    assert moved.provenance["candidate.tp"] == on_gpus.provenance["candidate.tp"]
    fields = {row["field"] for rows in diff(on_gpus, moved)["changed"].values() for row in rows}
    assert "candidate.max_num_seqs" in fields


def test_what_the_estimate_refuses_is_no_recipe(on_gpus):
    space = (Knob("memory_fraction", (0.05, 0.9), 1, "candidate"),)
    refusal = recipe_at(on_gpus, space, {"memory_fraction": 0})
    assert isinstance(refusal, str)
    assert request_at(on_gpus, space, {"memory_fraction": 0}).candidate.memory_fraction == 0.05


def test_limits_are_held_against_what_was_measured(on_gpus):
    aim = aim_of(recipe_request(on_gpus))
    assert (aim.limits, set(aim.unchecked)) == ({"tpot_ms": 0.03}, {"watts"})
    assert aim.broken({"tpot_s": 0.06})["tpot_ms"] == pytest.approx(0.693, abs=0.001)
    assert aim.broken({"tpot_s": 0.02})["tpot_ms"] < 0
    faster = aim.score({"output_tokens_per_s": 200.0}, on_gpus)
    assert faster < aim.score({"output_tokens_per_s": 100.0}, on_gpus)
    with pytest.raises(InputError, match="not measured"):
        aim_of(recipe_request(on_gpus), "energy")
    with pytest.raises(InputError, match="unknown objective"):
        aim_of(recipe_request(on_gpus), "speed")


def test_a_gain_is_believed_beyond_the_noise_only():
    drift = [0.0, 0.3, 0.6, 0.9]  # the machine grows slower: pairs share it
    better = gain_of(drift, [value - 0.1 for value in drift])
    assert better.proven
    assert better.mean == pytest.approx(1.105, abs=0.001)
    noise = random.Random(3)
    alike = gain_of(*([noise.gauss(0, 0.1) for _ in range(4)] for _ in range(2)))
    assert not alike.proven
    assert order(3) == ["base", "best", "best", "base", "base", "best"]


# Whole searches


def tuned(bundle: Path, servers: Servers, budget: Budget = QUICK, **options: Any) -> Tuned:
    return tune(
        bundle,
        budget,
        tell=lambda line: None,
        clock=servers.clock,
        deploy=servers.deploy,
        alone=ALONE,
        **options,
    )


def test_tuning_finds_the_fastest_point_and_writes_its_recipe(vllm_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(knobs_module, "LADDERS", {"max_num_seqs": (0.5, 1.0, 8.0, 16.0)})
    bundle, output = vllm_bundle(), tmp_path / "better"
    servers = Servers(best_seqs=128, dies_at=8)  # three doublings from the recommended 16
    outcome = tuned(bundle, servers, output=output)
    assert (servers.started[0], servers.started[-4:]) == (16, [16, 128, 128, 16])
    assert outcome.recipe is not None, outcome.to_json()
    assert outcome.notes == []
    assert outcome.gain is not None
    assert outcome.gain.low == pytest.approx(0.076 / 0.004)
    base, better = read_bundle(bundle).recipe, read_bundle(output).recipe
    assert (better.candidate["max_num_seqs"], base.candidate["max_num_seqs"]) == (128, 16)
    assert outcome.ended == "every point was tried"
    failed = [row for row in outcome.trials if row["state"] == "failed"]
    assert [row["values"]["max_num_seqs"] for row in failed] == [8]
    claim = better.claims[-1]
    assert claim.metrics["gain_ratio"] == pytest.approx(outcome.gain.mean)
    assert claim.metrics["tpot_s"] == 0.004
    assert claim.metrics["recommended_tpot_s"] == pytest.approx(0.076)
    assert claim.candidate == better.candidate
    changed = diff(base, better)["changed"]
    assert "candidate.max_num_seqs" in {row["field"] for row in changed["candidate"]}
    report = json.loads((bundle / "run" / "tune" / "report.json").read_text())
    assert report["trials"][0]["values"]["max_num_seqs"] == 16
    assert report["better"]
    assert json.loads((output / "run" / "measurement.json").read_text())["recipe"] == better.name
    assert not list(bundle.glob("run/tune/work-*"))


def test_a_recommended_point_that_is_best_stays(vllm_bundle, tmp_path):
    outcome = tuned(vllm_bundle(), Servers(), replace(QUICK, trials=2), output=tmp_path / "no")
    assert (outcome.recipe, outcome.ended) == (None, "2 trials")
    assert not (tmp_path / "no").exists()


def test_a_search_ends_where_the_next_trial_and_the_pairs_would_be_too_late(
    vllm_bundle, monkeypatch
):
    """A trial takes two measurements, and the end is reckoned as four trials."""
    monkeypatch.setattr(knobs_module, "LADDERS", {"max_batched_tokens": (1.0, 2.0, 4.0)})
    minutes = 12 * BENCH_S / 60
    outcome = tuned(vllm_bundle(), Servers(), replace(QUICK, minutes=minutes))
    assert (outcome.ended, len(outcome.trials)) == ("20 minutes", 2)


def test_a_recommended_point_that_does_not_start_is_an_error(vllm_bundle):
    bundle = vllm_bundle()
    with pytest.raises(TrialError):
        tuned(bundle, Servers(dies_at=16))
    assert not list(bundle.glob("run/tune/work-*"))


def test_two_searches_of_one_bundle_exclude_each_other(vllm_bundle):
    bundle = vllm_bundle()
    with ALONE(bundle, "tune"), pytest.raises(InputError, match="another `recipe tune`"):
        tuned(bundle, Servers())


# Real launchers and the fake engine


def started(bundle: Path) -> subprocess.Popen[bytes]:
    """`recipe tune` in a process of its own, once a server of it runs."""
    words = [sys.executable, "-m", "recipe_core", "tune", str(bundle), "--splits", "1"]
    child = subprocess.Popen(
        [*words, "--trials", "3", "--repeats", "2"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=usual_signals,
    )
    if not comes(lambda: child.poll() is not None or bool(servers_of(bundle))):
        child.kill()
    assert servers_of(bundle), child.communicate()[1].decode()
    return child


def servers_of(bundle: Path) -> list[int]:
    """Processes of the bundle's trials."""
    works = [path.name for path in bundle.glob("run/tune/work-*")]
    return [pid for work in works for pid in with_variable(MARK, work)]


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)],
)
def test_an_end_by_signal_leaves_nothing_running(vllm_bundle, number):
    bundle = vllm_bundle()
    child = started(bundle)
    mine = [path.name for path in bundle.glob("run/tune/work-*")]
    child.send_signal(number)
    _, told = child.communicate(timeout=PATIENCE)
    assert comes(lambda: not any(with_variable(MARK, work) for work in mine))
    if number != signal.SIGKILL:
        assert child.returncode == 130
        assert b"--resume" in told
        assert not list(bundle.glob("run/tune/work-*"))


@pytest.mark.nightly
@pytest.mark.usefixtures("fake_vllm")
def test_the_next_start_stops_what_a_kill_of_tuner_and_guard_left(vllm_bundle):
    bundle = vllm_bundle()
    child = started(bundle)
    work = next(bundle.glob("run/tune/work-*"))
    for pid in guards(work):
        os.kill(pid, signal.SIGKILL)
    child.kill()
    child.communicate()
    assert with_variable(MARK, work.name)
    lines: list[str] = []
    outcome = tune(bundle, Budget(trials=1, repeats=2, splits=1), resume=True, tell=lines.append)
    assert not with_variable(MARK, work.name)
    assert "processes that an earlier run had left" in lines[0]
    assert outcome.trials[0]["values"]["max_num_seqs"] == 16
    assert outcome.trials[0]["state"] == "measured"
    assert not work.exists()


def guards(work: Path) -> list[int]:
    """Guards of a folder of experiments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"recipe_core.trials.guard" in words and str(work).encode() in words:
                found.append(int(path.parent.name))
    return found
