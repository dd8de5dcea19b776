"""Losses of power at every change of files: what was acknowledged is there, or what came after it.

In each trial a random row of changes is made to a calibration and to a bundle that has run. A count
is one trial, of some hundred losses.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.bundle import replace as builds
from recipe_core.bundle.replace import recover, replace_folder
from recipe_core.calibration.own_runs import Measured, of_runs
from recipe_core.measured.serving_runs import published_runs
from recipe_core.recipe.overlay import Incoming, Overlay
from tests.bundle.test_bundle_replace import RUNS, bundle, own, runs, write
from tests.fixtures.power import every_loss
from tests.nightly.attack.harness import Order, Tally
from tests.nightly.attack.writers import run_of

STEPS = 4


def attack(order: Order) -> Tally:
    """As many trials as ordered, or those that are named."""
    tally, template = Tally(), of_runs([run for run in published_runs() if run.tpot_ms][:1])[0]
    for number in order.indices():
        with tempfile.TemporaryDirectory(prefix="unsynced-") as folder:
            trial = Trial(Path(folder), random.Random(f"{order.seed}:{number}"), template)
            tally.tried["losses"] += trial.run()
        tally.tried["trials"] += 1
        tally.findings += [f"{number}: {text}" for text in trial.found]
    return tally


class Trial:
    """What a disk holds by what was acknowledged, and by the change that is being made."""

    def __init__(self, folder: Path, r: random.Random, template: Measured) -> None:
        self.root, self.left, self.r, self.template = folder / "disk", folder / "left", r, template
        self.found: list[str] = []
        self.state = {"calibration": "[]", "bundle": "old"}
        self.coming = dict(self.state)
        write(self.root / "b", bundle("old") | RUNS)

    def run(self) -> int:
        """How many losses were tried."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)  # what a disk keeps is known without one
            exchange = (builds, "exchange")
            return every_loss(self.root, self.work, self.look, patch, self.left, exchange)

    def work(self) -> None:
        for number in range(STEPS):
            name, content, change = self.r.choice((self.add, self.undo, self.build))(number)
            self.coming = {**self.state, name: content}
            change()
            self.state = dict(self.coming)

    def add(self, number: int) -> tuple[str, str, Callable[[], Any]]:
        """A run more."""
        here = Overlay.at(self.root / "a" / "calibration")
        coming = [Incoming(run_of(self.template, number), "x", "table")]
        return "calibration", ids(here.add(coming, dry=True).overlay), lambda: here.add(coming)

    def undo(self, number: int) -> tuple[str, str, Callable[[], Any]]:
        """The latest run taken back, or one more where there is none."""
        here = Overlay.at(self.root / "a" / "calibration")
        if not here.additions:
            return self.add(number)
        fewer = Overlay(here.path, here.additions[:-1], here.today)
        return "calibration", ids(fewer), here.undo

    def build(self, number: int) -> tuple[str, str, Callable[[], Any]]:
        """Another bundle at the name."""
        text = f"new{number}"
        return "bundle", text, lambda: replace_folder(self.root / "b", bundle(text))

    def look(self, folder: Path, loss: str) -> None:
        """Compare what is left with what may be."""
        try:
            recover(folder / "b")
            left = {"calibration": ids(Overlay.at(folder / "a" / "calibration"))}
            texts = (self.state["bundle"], self.coming["bundle"])
            left["bundle"] = next((t for t in texts if own(folder / "b") == bundle(t)), "another")
            lost = runs(folder / "b") != RUNS
        except RecipeError as error:
            left, lost = {"it": str(error)}, False
        wrong = [n for n, has in left.items() if has not in (self.state.get(n), self.coming.get(n))]
        if wrong or lost:
            self.found.append(f"{loss}, {self.coming}: left {left}, runs lost: {lost}")
        shutil.rmtree(folder)


def ids(overlay: Overlay) -> str:
    return str(sorted(run.id for addition in overlay.additions for run in addition.all))
