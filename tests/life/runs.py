"""A bundle of a small run, its two starts, and what they left."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from tests.life import processor
from tests.life.sandbox import Image, live
from tests.life.targets import Place, start
from tests.life.tiny_model import CONFIG

MODEL_AT = "/data/tiny"
STEPS, SEQUENCES, LENGTH = 2, 4, 128
METRICS = ("torch", "accelerate", "deepspeed")
"""Frameworks whose runs the bundle's own trainer records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that is asked for: what is stated of it beside its size."""

    engine: str
    method: str
    target: str
    split: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def __str__(self) -> str:
        more = "".join(f"-{name}{value}" for name, value in self.split.items())
        return f"{self.engine}-{self.method}-{self.target.replace(' ', '-')}{more}"

    @property
    def request(self) -> dict[str, Any]:
        """Two steps of four sequences by two processes, and a checkpoint after each."""
        run = {
            "kind": "training",
            "method": self.method,
            "sequence_length": LENGTH,
            "global_batch": SEQUENCES,
            "tokens": STEPS * SEQUENCES * LENGTH,
            "checkpoint_interval_s": 1e-6,
        }
        split = {"engine": self.engine, "tp": 1, "pp": 1, "dp": 2, "micro_batch": 2}
        return {
            "model": {"_name_or_path": "tiny", **CONFIG},
            "hardware": {"device": self.device, "per_node": 2, "nodes": 1},
            "workload": run | dict(self.workload),
            "candidate": split | {"recompute": "none"} | dict(self.split),
        }


def build(case: Case, folder: Path) -> Path:
    """The bundle of a case, as ``recipe build`` writes it."""
    place = Parameters(image="registry.example/trainer:1", model=MODEL_AT)
    recipe = make_recipe(PlanRequest.parse(case.request), Additions(parameters=place))
    write_bundle(recipe, folder)
    if case.device == processor.DEVICE:
        processor.prepare(case.engine, folder)
    return folder


def checkpoints(run: Path) -> dict[int, Path]:
    """Whole checkpoints of a run by their steps."""
    ends = {"step": ".metadata", "checkpoint": "trainer_state.json"}
    return {
        int(path.name.rpartition("-")[2]): path
        for name, end in ends.items()
        for path in sorted((run / "checkpoints").glob(f"{name}-*"))
        if (path / end).is_file()
    }


def losses(engine: str, run: Path) -> dict[int, float]:
    """The loss of each step, from the record that the tool keeps."""
    if engine in METRICS:
        with (run / "metrics.csv").open() as lines:
            return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(lines)}
    newest = checkpoints(run)
    state = json.loads((newest[max(newest)] / "trainer_state.json").read_text())
    return {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}


@dataclass(frozen=True, slots=True)
class Lived:
    """What two starts left: losses by step, checkpoints, and what was kept of the first."""

    first: dict[int, float]
    again: dict[int, float]
    steps: tuple[int, ...]
    kept: bool
    """Whether the checkpoint that the second start found is the very one that it left."""


def lived(case: Case, image: Image, model: Path, folder: Path) -> Lived:
    """Start a run, take its last checkpoint away as if it had died, and start it again."""
    place = Place(build(case, folder / "bundle"), model, MODEL_AT, folder / "kept")
    _start(case, place, image, folder / "first")
    first, written = losses(case.engine, place.run), checkpoints(place.run)
    assert len(written) > 1, f"checkpoints: {written}"
    *_, before, last = sorted(written)
    shutil.rmtree(written[last])
    shutil.rmtree(place.run / "model", ignore_errors=True)
    stamps = _stamps(written[before])
    _start(case, place, image, folder / "again")
    again = losses(case.engine, place.run)
    return Lived(first, again, tuple(sorted(written)), _stamps(written[before]) == stamps)


def _start(case: Case, place: Place, image: Image, folder: Path) -> None:
    status = live(start(case.target, place), image, folder)
    said = (folder / "log").read_text(errors="replace")
    assert status == 0, f"{case}: ended with {status}\n{said[-6000:]}"


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files a folder has, and when each was written."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in files
    }
