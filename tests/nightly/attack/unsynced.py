"""Losses of power at every change of files: what was acknowledged is there, or what comes after it.

A trial is a random row of changes to a calibration and to a bundle that has run: 200 losses.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.bundle import replace as builds
from recipe_core.bundle.replace import recover_build, replace_folder
from recipe_core.calibration.store import Overlay
from tests.bundle.test_bundle_replace import RUNS, bundle, own, runs, write
from tests.fixtures.power import every_loss
from tests.nightly.attack.harness import Order, Tally
from tests.nightly.attack.writers import coming

STEPS = 4


def attack(order: Order) -> Tally:
    """As many trials as ordered, or those that are named."""
    tally = Tally()
    for number in order.indices():
        with tempfile.TemporaryDirectory(prefix="unsynced-") as folder:
            found = trial(Path(folder), random.Random(f"{order.seed}:{number}"), tally)
        tally.tried["trials"] += 1
        tally.findings += [f"{number}: {text}" for text in found]
    return tally


def trial(folder: Path, r: random.Random, tally: Tally) -> list[str]:
    """What is wrong with what losses left."""
    root, found = folder / "disk", list[str]()
    write(root / "b", bundle("old") | RUNS)
    may_be = {"runs": [held(Overlay.at(root / "a"))], "bundle": [bundle("old")]}

    def work() -> None:
        for number in range(STEPS):
            here = Overlay.at(root / "a")
            if r.random() < 0.4:
                made, after = "bundle", bundle(f"new{number}")
                change = lambda after=after: replace_folder(root / "b", after)  # noqa: E731
            elif here.additions and r.random() < 0.4:
                made, after, change = "runs", held(here, -1), here.undo
            else:
                made, run = "runs", coming(number)
                after = held(here.add([run], dry=True).overlay)
                change = lambda here=here, run=run: here.add([run])  # noqa: E731
            may_be[made].append(after)
            change()
            may_be[made] = [after]

    def look(left: Path, loss: str) -> None:
        try:
            recover_build(left / "b")
            there = {"runs": held(Overlay.at(left / "a")), "bundle": own(left / "b")}
            wrong = [name for name, has in there.items() if has not in may_be[name]]
            wrong += ["what it ran"] * (runs(left / "b") != RUNS)
        except RecipeError as error:
            wrong = [str(error)]
        found.extend(f"{loss}: {what} is neither old nor new" for what in wrong)
        shutil.rmtree(left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # what a disk keeps is known without one
        exchange = (builds, "exchange_paths")
        tally.tried["losses"] += every_loss(root, work, look, patch, folder / "left", exchange)
    return found


def held(overlay: Overlay, end: int | None = None) -> list[str]:
    """The runs of a calibration, to an end."""
    return [run.id for addition in overlay.additions[:end] for run in addition.runs]
