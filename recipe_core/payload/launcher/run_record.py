"""The record of a training run: its steps, checkpoints and what its trainer notes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .errors import InputError
from .files import read_file_end, read_object, write_json
from .measurement import FIGURES, finite_number
from .plan import LaunchPlan

# Exit codes of the trainers of this project; their launcher, torchrun, ends with 1 for both.
ROLLED_BACK, FOR_A_PERSON = 3, 2
_RECENT = 50
# A file in the run folder: the trainer saves a checkpoint and ends once it exists.
STOP = "stop"
_START = "start.json"
_END = "end.json"
_ROLLBACKS = "rollbacks.json"
# Checkpoint folders by the first part of their names, and the file that is written last.
_MARKS = {"step": ".metadata", "checkpoint": "trainer_state.json"}


# First steps after a start that are not measured: they build caches and kernels.
WARM_UP = 2
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Step:
    """One row; missing values are None."""

    number: int
    values: dict[str, float | None]

    def get(self, name: str) -> float | None:
        return self.values.get(name)


def metrics_file(plan: LaunchPlan) -> Path | None:
    """The file of the run's steps; None for a framework that writes none."""
    return plan.run / "metrics.csv" if (plan.root / "train.json").is_file() else None


def read_steps(path: Path | None) -> list[Step]:
    """Complete rows so far; lines that a loss of power damaged are left out."""
    text = read_file_end(path, _MOST_BYTES) if path is not None else None
    if text is None:
        return []
    lines = text.decode("utf-8", errors="replace").replace("\0", "").splitlines()
    rows = csv.DictReader(line for line in lines if "\ufffd" not in line)
    return [
        Step(int(row["step"]), {name: _parse_step_value(text) for name, text in row.items()})
        for row in rows
        if None not in row and None not in row.values() and row.get("step", "").isdecimal()
    ]


def _parse_step_value(text: str) -> float | None:
    try:
        return finite_number(float(text))
    except ValueError:
        return None


def planned_steps(plan: LaunchPlan) -> int | None:
    """The number of steps of the run, from expected.json."""
    run = read_object(plan.folder / "expected.json").get("run")
    steps = finite_number(run.get("steps")) if isinstance(run, dict) else None
    return int(steps) if steps else None


def step_figures(steps: list[Step]) -> dict[str, float | None]:
    """Medians over steps; the maximum of memory."""
    out: dict[str, float | None] = {}
    for name in FIGURES["training"]:
        numbers = [value for step in steps if (value := step.get(name)) is not None]
        combine = max if name == "peak_memory_bytes" else median
        out[name] = combine(numbers) if numbers else None
    return out


@dataclass(frozen=True, slots=True)
class End:
    """The end that the trainer states: its exit code, and a sentence."""

    code: int
    message: str


def last_step(plan: LaunchPlan) -> int:
    """The newest step in the run's record; 0 before the first, and without a record."""
    steps = read_steps(metrics_file(plan))
    return steps[-1].number if steps else 0


def note_start(plan: LaunchPlan) -> None:
    """Note, before a start, from which step it goes on.

    Raises:
        LauncherError: where nothing can be written.
    """
    (plan.run / _END).unlink(missing_ok=True)
    (plan.run / STOP).unlink(missing_ok=True)
    write_json(plan.own / _START, {"schema_version": 1, "step": checkpoint_step(plan)})


def start_step(plan: LaunchPlan) -> int:
    """The step from which the last start goes on."""
    try:
        step = read_object(plan.own / _START).get("step")
    except InputError:
        return 0
    return step if isinstance(step, int) else 0


def step_of_start(plan: LaunchPlan) -> int:
    """The newest step of the last start.

    A start that resumes first drops the steps that it repeats: until its record is newer than the
    start, the steps in it are those of an earlier one.
    """
    path = metrics_file(plan)
    if path is None or _written_ns(path) <= _written_ns(plan.own / _START):
        return start_step(plan)
    return last_step(plan)


def _written_ns(path: Path) -> int:
    """Return when a file was last written, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def checkpoint_step(plan: LaunchPlan) -> int:
    """The step of the newest checkpoint that was written to its end; 0 without one."""
    checkpoint = newest_checkpoint(plan)
    return checkpoint[0] if checkpoint else 0


def has_finished(plan: LaunchPlan) -> bool:
    """Return whether the last planned step is done."""
    steps = planned_steps(plan)
    return steps is not None and last_step(plan) >= steps


def newest_checkpoint(plan: LaunchPlan) -> tuple[int, Path] | None:
    """Step and folder of the newest checkpoint that was written to its end."""
    folders = {}
    for path in (plan.run / "checkpoints").glob("*-*"):
        name, _, number = path.name.rpartition("-")
        if number.isdigit() and name in _MARKS and (path / _MARKS[name]).is_file():
            folders[int(number)] = path
    return (max(folders), folders[max(folders)]) if folders else None


def count_written_bytes(plan: LaunchPlan) -> int:
    """Bytes of what the run writes beside its record; without a record its logs count, too."""
    folders = (plan.run / "checkpoints", plan.run / "model", plan.run / "adapter")
    files = [path for folder in folders for path in folder.rglob("*")]
    if metrics_file(plan) is None:
        files += [plan.own / f"{process.name}.log" for process in plan.processes]
    return sum(_file_bytes(path) for path in files)


def usual_step_s(plan: LaunchPlan) -> float | None:
    """The median time of the newest steps, in seconds; None before the first."""
    times = [step.get("step_s") for step in read_steps(metrics_file(plan))[-_RECENT:]]
    durations = [seconds for seconds in times if seconds is not None]
    return median(durations) if durations else None


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_trainer_end(plan: LaunchPlan) -> End | None:
    """Return how the trainer says that it ended; None where it says nothing."""
    try:
        values = read_object(plan.run / _END)
    except InputError:
        return None
    code, message = values.get("code"), values.get("message")
    return End(code, str(message)[:2000]) if isinstance(code, int) else None


def read_rollbacks(plan: LaunchPlan) -> list[dict[str, Any]]:
    """The rollbacks that the trainer recorded, oldest first."""
    try:
        items = read_object(plan.run / _ROLLBACKS).get("rollbacks")
    except InputError:
        return []
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def world_size(plan: LaunchPlan) -> int:
    """Processes that train, one a device; nodes have equally many."""
    return sum(len(process.devices) or 1 for process in plan.processes) * (
        1 if plan.node is None else plan.nodes
    )
