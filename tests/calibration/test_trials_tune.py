"""The search for better options, by states and on the real machine, and what it leaves."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from recipe_core.bundle.verify import read_bundle
from recipe_core.calibration.trials import search_problem
from recipe_core.calibration.trials.deployment import TrialError
from recipe_core.calibration.trials.guard import LAUNCHER_S, MARK, mark_of, stop_all
from recipe_core.calibration.trials.search_problem import (
    SPLIT,
    Knob,
    alternating_order,
    gain_of,
    recipe_at,
    recommended_point,
    search_aim,
    tunable_knobs,
)
from recipe_core.calibration.trials.study import JOURNAL, Search
from recipe_core.calibration.trials.tune import Budget, tune
from recipe_core.calibration.trials.workplace import Machine
from recipe_core.payload.launcher.procs import Processes, Stat
from recipe_core.recipe import make_recipe, recipe_request
from recipe_core.recipe.comparison import diff_recipes
from recipe_core.views.reconciliation import tune_text
from tests.conftest import make_request
from tests.fixtures.bundles import usual_signals, with_variable
from tests.fixtures.experiments import ALONE, BENCH_S, Servers
from tests.fixtures.fake_world import FakeClock
from tests.fixtures.paths import ROOT
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.refusals import refusal

QUICK = Budget(trials=6, repeats=2, splits=1)
SPACE = (
    Knob("max_num_seqs", tuple(range(9)), 4, "candidate"),
    Knob("max_batched_tokens", tuple(range(9)), 4, "candidate"),
    Knob(SPLIT, ({"tp": 1}, {"tp": 2}, {"tp": 4}), 0, SPLIT),
)


def score_of(point):
    """Known optimum: 6, 2 and the second split."""
    seqs, tokens = abs(point["max_num_seqs"] - 6), abs(point["max_batched_tokens"] - 2)
    return 0.1 * seqs + 0.05 * tokens + 0.3 * (point[SPLIT] != 1)


def opened(folder, space=SPACE, recipe="a", *, resume=False):
    return Search.opened(folder, space, {"recipe": recipe}, resume=resume)


def run(search, trials, most_seqs=9):
    """Answer what the search asks; points above ``most_seqs`` break a limit."""
    while len(search.done) < trials:
        trial, point = search.ask()
        beyond = 0.5 if point["max_num_seqs"] > most_seqs else 0.0
        search.tell(trial, score_of(dict(point)), excess=beyond)


def test_the_search_starts_at_the_recommended_point_and_finds_the_optimum(tmp_path):
    search = opened(tmp_path / "free")
    run(search, 40)
    assert search.done[0].params == recommended_point(SPACE)
    assert search.best().value <= 0.1 < score_of(recommended_point(SPACE))
    assert len({tuple(t.params.items()) for t in search.done}) == len(search.done)
    # points beyond the limits are never the best
    search = opened(tmp_path / "limited")
    run(search, 20, most_seqs=4)
    assert search.best().params["max_num_seqs"] <= 4
    # a small space is searched to its end
    search = opened(tmp_path / "small", (Knob("max_num_seqs", (1, 2, 4), 1, "candidate"),))
    points = []
    while (asked := search.ask()) is not None:
        points.append(asked[1]["max_num_seqs"])
        search.tell(asked[0], float(asked[1]["max_num_seqs"]))
    assert (points[0], sorted(points)) == (1, [0, 1, 2])


def test_a_journal_survives_a_kill_in_the_middle_of_a_line(tmp_path):
    first = opened(tmp_path)
    run(first, 3)
    _, point = first.ask()  # and killed before it was told
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "half')
    (tmp_path / f"{JOURNAL}.lock").touch()
    again = opened(tmp_path, resume=True)
    assert len(again.done) == 3
    _, retried = again.ask()
    assert dict(retried) == dict(point)
    assert "another recipe" in str(refusal(opened, tmp_path, recipe="b", resume=True))
    assert opened(tmp_path, recipe="b").done == []
    assert (tmp_path / "journal-1.log").is_file()


def test_warm_ups_without_hope_are_given_up(tmp_path):
    search = opened(tmp_path)
    trial, _ = search.ask()
    assert search.give_up(trial, 0.0) is None
    search.tell(trial, 0.0)
    trial, _ = search.ask()
    assert "worse than the best" in str(search.give_up(trial, 0.7))
    search.tell(trial, None, reason="slow")
    assert search.best().number == 0


@pytest.fixture(scope="module")
def on_gpus():
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1}
    aim = {"optimize": "throughput", "limits": {"tpot_ms": 30, "watts": 9000}}
    return make_recipe(make_request("Qwen/Qwen3-8B", per_node=4, candidate=split, objective=aim))


def test_the_space_is_what_the_engine_has_options_for(on_gpus):
    space = {knob.name: knob for knob in tunable_knobs(on_gpus, 3)}
    names = "max_num_seqs max_batched_tokens memory_fraction max_cudagraph_capture_size"
    assert set(space) == {*names.split(), SPLIT}
    assert len(space[SPLIT].values) == 3
    seqs = space["max_num_seqs"]
    assert seqs.values[seqs.base] == on_gpus.candidate["max_num_seqs"]
    assert max(space["memory_fraction"].values) <= 0.97
    assert search_problem.first_splits(on_gpus, 1) == [
        {"tp": 4, "pp": 1, "dp": 1, "ep": 1, "cp": 1}
    ]


def test_a_point_is_a_recipe_and_what_moved_is_the_objectives_choice(on_gpus):
    space = tunable_knobs(on_gpus, 1)
    point = recommended_point(space)
    assert recipe_at(on_gpus, space, point) is on_gpus
    point["max_num_seqs"] += 1
    point["max_cudagraph_capture_size"] = 1
    moved = recipe_at(on_gpus, space, point)
    assert moved.engine.options["max_cudagraph_capture_size"] == 64
    assert moved.provenance["candidate.max_num_seqs"] == "objective"
    assert moved.provenance["candidate.tp"] == on_gpus.provenance["candidate.tp"]
    fields = {
        row["field"] for rows in diff_recipes(on_gpus, moved)["changed"].values() for row in rows
    }
    assert "candidate.max_num_seqs" in fields
    # what the estimate refuses is no recipe
    space = (Knob("memory_fraction", (0.05, 0.9), 1, "candidate"),)
    assert isinstance(recipe_at(on_gpus, space, {"memory_fraction": 0}), str)
    assert (
        search_problem.request_at(on_gpus, space, {"memory_fraction": 0}).candidate.memory_fraction
        == 0.05
    )


def test_limits_are_held_against_what_was_measured(on_gpus):
    aim = search_aim(recipe_request(on_gpus))
    assert (aim.limits, set(aim.unchecked)) == ({"tpot_ms": 0.03}, {"watts"})
    assert aim.broken({"tpot_s": 0.06})["tpot_ms"] == pytest.approx(0.693, abs=0.001)
    assert aim.broken({"tpot_s": 0.02})["tpot_ms"] < 0
    faster = aim.score({"output_tokens_per_s": 200.0}, on_gpus)
    assert faster < aim.score({"output_tokens_per_s": 100.0}, on_gpus)
    for name, says in (("energy", "not measured"), ("speed", "unknown objective")):
        assert says in str(refusal(search_aim, recipe_request(on_gpus), name))


def test_a_gain_is_believed_beyond_the_noise_only():
    drift = [0.0, 0.3, 0.6, 0.9]  # the machine grows slower: pairs share it
    better = gain_of(drift, [value - 0.1 for value in drift])
    assert better.proven
    assert better.mean_ratio == pytest.approx(1.105, abs=0.001)
    noise = random.Random(3)
    alike = gain_of(*([noise.gauss(0, 0.1) for _ in range(4)] for _ in range(2)))
    assert not alike.proven
    assert alternating_order(3) == ["base", "best", "best", "base", "base", "best"]


def tuned(bundle, servers, budget=QUICK, **options):
    machine = Machine(lambda line: None, servers.clock, servers.deploy, ALONE)
    return tune(bundle, budget, machine=machine, **options)


def test_tuning_finds_the_fastest_point_and_writes_its_recipe(vllm_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(search_problem, "LADDERS", {"max_num_seqs": (0.5, 1.0, 8.0, 16.0)})
    bundle, output = vllm_bundle(), tmp_path / "better"
    servers = Servers(best_seqs=128, dies_at=8)  # three doublings from the recommended 16
    outcome = tuned(bundle, servers, output=output)
    assert (servers.started[0], servers.started[-4:]) == (16, [16, 128, 128, 16])
    assert outcome.recipe is not None, outcome.to_json()
    assert outcome.notes == []
    assert outcome.gain.low_ratio == pytest.approx(0.076 / 0.004)
    base, better = read_bundle(bundle).recipe, read_bundle(output).recipe
    assert (better.candidate["max_num_seqs"], base.candidate["max_num_seqs"]) == (128, 16)
    assert outcome.ended == "every point was tried"
    failed = [row for row in outcome.trials if row["state"] == "failed"]
    assert [row["values"]["max_num_seqs"] for row in failed] == [8]
    claim = better.claims[-1]
    assert claim.metrics["gain_ratio"] == pytest.approx(outcome.gain.mean_ratio)
    assert claim.metrics["tpot_s"] == 0.004
    assert claim.metrics["recommended_tpot_s"] == pytest.approx(0.076)
    assert claim.candidate == better.candidate
    report = json.loads((bundle / "run" / "tune" / "report.json").read_text())
    assert report["trials"][0]["values"]["max_num_seqs"] == 16
    assert report["better"]
    assert json.loads((output / "run" / "measurement.json").read_text())["recipe"] == better.name
    assert not list(bundle.glob("run/tune/work-*"))
    told = tune_text(outcome, output)
    for part in (
        " 1 failed",
        "the recommended point",
        "better: max_num_seqs=128",
        f"wrote {output}",
    ):
        assert part in told


def test_a_search_ends_with_its_budget_or_its_recommended_point(vllm_bundle, tmp_path, monkeypatch):
    bundle = vllm_bundle()
    with pytest.raises(TrialError):  # a recommended point that does not start
        tuned(bundle, Servers(dies_at=16))
    assert not list(bundle.glob("run/tune/work-*"))
    with ALONE(bundle, "tune"):  # two searches of one bundle exclude each other
        assert "another `recipe tune`" in str(refusal(tuned, bundle, Servers()))
    # a recommended point that is best stays
    outcome = tuned(bundle, Servers(), replace(QUICK, trials=2), output=tmp_path / "no")
    assert (outcome.recipe, outcome.ended) == (None, "2 trials")
    assert not (tmp_path / "no").exists()
    # a trial takes two measurements, and the end is reckoned as four trials
    monkeypatch.setattr(search_problem, "LADDERS", {"max_batched_tokens": (1.0, 2.0, 4.0)})
    minutes = 12 * BENCH_S / 60
    outcome = tuned(bundle, Servers(), replace(QUICK, minutes=minutes))
    assert (outcome.ended, len(outcome.trials)) == ("20 minutes", 2)


# What a killed experiment left is stopped: launchers first, then by `down`, then the rest

LAUNCHER, SERVER, KEEPER, STRANGER = 10, 11, 12, 13


class Pretended(Processes):
    """Processes that end by a signal each; ``stranger`` has no mark."""

    def __init__(self, **ends_by):
        super().__init__(FakeClock())
        names = {"launcher": LAUNCHER, "server": SERVER, "keeper": KEEPER, "stranger": STRANGER}
        self.ends_by = {names[name]: number for name, number in ends_by.items()}
        self.left, self.log = set(self.ends_by), []

    def running(self):
        return (Stat(pid, "S", pid, pid, 1) for pid in sorted(self.left))

    def marked(self, pid, mark, variable=""):
        assert (mark[:7], variable) == ("work-1-", "RECIPE_TRIAL_ID")
        return pid != STRANGER

    def alive(self, pid, started):
        return pid in self.left

    def reap(self, pid):
        return None

    def kill(self, pid, number):
        self.log.append((pid, number.name))
        if self.ends_by[pid] == number.name:
            self.left.discard(pid)

    def take_down(self, folder):
        self.log.append(f"down {folder.name}")
        self.left.discard(KEEPER)


def stopped(processes, folder, bundles=()):
    """``stop_all`` of a folder in which these bundles run."""
    work = folder / "work-1"
    work.mkdir()
    for name in bundles:
        (work / name / "run").mkdir(parents=True)
        for file in ("launch.py", "run/state.json"):
            (work / name / file).touch()
    down, launcher = processes.take_down, lambda pid: pid == LAUNCHER
    return stop_all(work, processes=processes, is_launcher=launcher, take_down=down)


def test_launchers_end_before_their_bundles_and_these_before_the_rest(tmp_path):
    processes = Pretended(launcher="SIGTERM", server="SIGTERM", keeper="", stranger="SIGTERM")
    assert stopped(processes, tmp_path, ["trial-001", "trial-000"]) == 3
    assert processes.log == [
        *[(LAUNCHER, "SIGCONT"), (LAUNCHER, "SIGTERM"), "down trial-000", "down trial-001"],
        *[(SERVER, "SIGCONT"), (SERVER, "SIGTERM")],
    ]
    assert processes.left == {STRANGER}


def test_who_does_not_heed_the_word_is_killed_when_its_time_is_over(tmp_path):
    processes = Pretended(launcher="SIGKILL")
    began_s = processes.clock.monotonic()
    assert stopped(processes, tmp_path) == 1
    assert [number for _, number in processes.log] == ["SIGCONT", "SIGTERM", "SIGKILL"]
    assert processes.clock.monotonic() - began_s == pytest.approx(LAUNCHER_S, abs=0.1)


def test_where_nothing_runs_nothing_is_done(tmp_path):
    processes = Pretended(stranger="SIGTERM")
    assert (stopped(processes, tmp_path, ["trial-000"]), processes.log) == (0, [])


# Real launchers and the fake engine


def started(bundle):
    """`recipe tune` in a process of its own, once a server of it runs."""
    words = [sys.executable, "-m", "recipe_core", "tune", str(bundle), "--splits", "1"]
    words += ["--trials", "3", "--repeats", "2"]
    ends = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "preexec_fn": usual_signals}
    child = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **ends)
    if not comes(lambda: child.poll() is not None or bool(servers_of(bundle))):
        child.kill()
    assert servers_of(bundle), child.communicate()[1].decode()
    return child


def servers_of(bundle):
    works = [mark_of(path) for path in bundle.glob("run/tune/work-*")]
    return [pid for work in works for pid in with_variable(MARK, work)]


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)],
)
def test_an_end_by_signal_leaves_nothing_running(vllm_bundle, number):
    bundle = vllm_bundle()
    child = started(bundle)
    mine = [mark_of(path) for path in bundle.glob("run/tune/work-*")]
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
    mark = mark_of(work)
    assert with_variable(MARK, mark)
    shutil.copytree(work, copy := bundle / "run" / "copies" / work.name)
    assert stop_all(copy) == 0
    lines = []
    outcome = tune(
        bundle, Budget(trials=1, repeats=2, splits=1), resume=True, machine=Machine(lines.append)
    )
    assert not with_variable(MARK, mark)
    assert "processes that an earlier run had left" in lines[0]
    first = outcome.trials[0]
    assert (first["values"]["max_num_seqs"], first["state"]) == (16, "measured")
    assert not work.exists()


def guards(work):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"recipe_core.calibration.trials.guard" in words and str(work).encode() in words:
                found.append(int(path.parent.name))
    return found
