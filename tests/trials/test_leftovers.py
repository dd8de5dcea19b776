"""What a killed experiment left is stopped: launchers first, then by `down`, then the rest."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from recipe_core.launcher.procs import Processes, Stat
from recipe_core.trials.leftovers import LAUNCHER_S, stop_all
from tests.fixtures.fake_world import FakeClock

LAUNCHER, SERVER, KEEPER, STRANGER = 10, 11, 12, 13


class Pretended(Processes):
    """Processes that end by a signal each; ``stranger`` has no mark."""

    def __init__(self, **ends_by: str) -> None:
        super().__init__(FakeClock())
        names = {"launcher": LAUNCHER, "server": SERVER, "keeper": KEEPER, "stranger": STRANGER}
        self.ends_by = {names[name]: number for name, number in ends_by.items()}
        self.left, self.log = set(self.ends_by), list[str | tuple[int, str]]()

    def running(self) -> Iterator[Stat]:
        return (Stat(pid, "S", pid, pid, 1) for pid in sorted(self.left))

    def marked(self, pid: int, mark: str, variable: str = "") -> bool:
        assert (mark, variable) == ("work-1", "RECIPE_TRIAL_ID")
        return pid != STRANGER

    def alive(self, pid: int, started: int) -> bool:
        return pid in self.left

    def reap(self, pid: int) -> None:
        return None

    def kill(self, pid: int, number: signal.Signals) -> None:
        self.log.append((pid, number.name))
        if self.ends_by[pid] == number.name:
            self.left.discard(pid)

    def take_down(self, folder: Path) -> None:
        self.log.append(f"down {folder.name}")
        self.left.discard(KEEPER)


def stopped(processes: Pretended, folder: Path, bundles: Sequence[str] = ()) -> int:
    """``stop_all`` of a folder in which these bundles run."""
    for name in bundles:
        (folder / "work-1" / name / "run").mkdir(parents=True)
        for file in ("launch.py", "run/state.json"):
            (folder / "work-1" / name / file).touch()
    return stop_all(
        folder / "work-1",
        processes=processes,
        is_launcher=lambda pid: pid == LAUNCHER,
        take_down=processes.take_down,
    )


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
    assert stopped(processes, tmp_path, ["trial-000"]) == 0
    assert processes.log == []
