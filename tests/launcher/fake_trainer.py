"""Stands in for the trainer: a row of figures every few milliseconds, an end when asked for one.

``run/fake.json`` may change it: ``step_s``; ``every``: steps between checkpoints, from which it
goes on; ``faults``: each a ``step`` at which it fires, a ``kind`` and how many ``times``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = "step,loss,step_s,tokens_per_s,tokens_per_s_per_gpu,mfu,peak_memory_bytes"
END = "end.json"


def read(run: Path) -> dict[str, Any]:
    path = run / "fake.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(run: Path, step: int) -> None:
    checkpoint = run / "checkpoints" / f"step-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / ".metadata").touch()


def rows_until(path: Path, step: int) -> None:
    """Keep the rows of steps up to one, as a trainer that resumes there."""
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    kept = [line for line in lines if int(line.split(",")[0]) <= step]
    path.write_text("\n".join([COLUMNS, *kept]) + "\n")


def fire(run: Path, fault: dict[str, Any], step: int) -> None:
    """Do what a fault says, once less than before."""
    scenario = read(run)
    for each in scenario["faults"]:
        if each["step"] == fault["step"] and each["kind"] == fault["kind"]:
            each["times"] -= 1
    part = run / "fake.part"
    part.write_text(json.dumps(scenario))
    part.replace(run / "fake.json")
    kind = fault["kind"]
    if kind == "hang":
        time.sleep(600)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "rollback":
        rollback = {"kind": "nan", "first": step, "last": step, "loss": None, "usual": 4.0}
        place = {"checkpoint": step - 1, "skipped": [step - 1, step], "time": "now"}
        values = {"schema_version": 1, "rollbacks": [rollback | place]}
        (run / "rollbacks.json").write_text(json.dumps(values))
        (run / END).write_text(json.dumps({"code": 3, "message": "the loss broke"}))
        sys.exit(1)  # as torchrun does, whatever its processes end with
    if kind == "refuse":
        end = {"code": 2, "message": "train.json.steps is '4', not int."}
        (run / END).write_text(json.dumps(end))
        sys.exit(1)
    sys.stdout.write(fault.get("log", "RuntimeError: the loss is not a number") + "\n")
    sys.exit(1)


def main() -> int:
    run, steps, fails_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    run.mkdir(exist_ok=True)
    scenario = read(run)
    every, step_s = scenario.get("every", 0), scenario.get("step_s", 0.02)
    path = run / "metrics.csv"
    if every:
        stored = [int(each.name.split("-")[1]) for each in run.glob("checkpoints/step-*")]
        rows_until(path, max(stored, default=0))
    done = len(path.read_text().splitlines()) - 1 if path.exists() else 0
    if not done:
        path.write_text(COLUMNS + "\n")
    sys.stdout.write(f"data: {os.environ.get('RECIPE_DATA')}\nsize: {sys.argv[4:]}\n")
    sys.stdout.flush()
    for step in range(done + 1, steps + 1):
        for fault in read(run).get("faults", []):
            if fault["step"] == step and fault["times"] > 0:
                fire(run, fault, step)
        if step == fails_at:
            sys.stdout.write("RuntimeError: the loss is not a number\n")
            return 1
        with path.open("a") as file:
            file.write(f"{step},{5 / step},{step_s},1000.0,500.0,,{step << 20}\n")
        time.sleep(step_s)
        stop = bool(asked) or (run / "stop").exists()
        if stop or (every and step % every == 0):
            save(run, step)
        if stop:
            (run / "stop").unlink(missing_ok=True)
            return 0
    (run / "model").mkdir(exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
