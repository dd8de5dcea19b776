"""The folder of a command's experiments: one command at a time, and nothing stays running."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from recipe_core.base.errors import InputError
from recipe_core.bundle.contents import RUN_FOLDER
from recipe_core.bundle.runs import refuse_running
from recipe_core.bundle.verify import read_bundle
from recipe_core.calibration.trials.deployment import Deployment, running_deployment
from recipe_core.calibration.trials.guard import guarded_folder, stop_all
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.signals import interruptible, uninterrupted
from recipe_core.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Workplace:
    """The workplace of a command: ``folder`` keeps its record, ``work`` the bundles under test.

    The name of ``work`` is new in each run: it marks what the run starts. ``stopped``: processes
    that a killed run had left.
    """

    folder: Path
    work: Path
    stopped: int = 0

    def clear(self, name: str) -> Path:
        place = self.work / name
        shutil.rmtree(place, ignore_errors=True)
        return place


@contextmanager
def workplace(
    bundle: Path,
    command: str,
    *,
    guard: Callable[[Path], AbstractContextManager[None]] = guarded_folder,
    stop: Callable[[Path], int] = stop_all,
) -> Iterator[Workplace]:
    """``BUNDLE/run/COMMAND/``, for one process at a time; servers of a killed one are stopped.

    SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt inside. However it is left, what the
    experiments started is stopped; where this process is killed, a guard does it.
    ``guard`` keeps watch over its folder, ``stop`` stops what one started.

    Raises:
        InputError: where the bundle runs, or another process experiments with it.
    """
    place = bundle / RUN_FOLDER / command
    with _lock_workplace(place, command), interruptible():
        stopped = 0
        for work in sorted(place.glob("work-*")):  # what a killed run left
            stopped += stop(work)
            shutil.rmtree(work, ignore_errors=True)
        refuse_running(bundle)
        work = place / f"work-{uuid.uuid4().hex[:12]}"
        work.mkdir()
        try:
            with guard(work):
                try:
                    yield Workplace(place, work, stopped)
                finally:
                    with uninterrupted():
                        stop(work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _lock_workplace(place: Path, command: str) -> Iterator[None]:
    try:
        with state.exclusive(place):
            yield
    except LauncherError as error:
        if "another launcher" not in error.message:
            raise InputError(error.message, field="bundle", hint=error.hint) from None
        raise InputError(
            f"another `recipe {command}` works on this bundle.",
            field="bundle",
            hint="Wait until it is done, or end it.",
        ) from None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of experiments: its time, servers and folders; ``tell`` gets a line a step.

    ``deploy`` starts a recipe's bundle in a folder, as ``deployment.running_deployment``.
    """

    tell: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    deploy: Callable[..., AbstractContextManager[Deployment]] = running_deployment
    alone: Callable[[Path, str], AbstractContextManager[Workplace]] = workplace


@dataclass(frozen=True, slots=True)
class Experiment:
    """A command's experiments with a bundle: the machine, its folder, and the bundle's recipe.

    ``model``: where the bundle's model lies; ``timeout_s``: until a deployment must answer.
    """

    machine: Machine
    place: Workplace
    recipe: Recipe
    model: str | None
    timeout_s: float | None = None

    def start(
        self, name: str, recipe: Recipe, model: str | None, environment: Mapping[str, str] | None
    ) -> AbstractContextManager[Deployment]:
        """A deployment of a recipe in the folder ``name``, stopped however the block is left."""
        return self.machine.deploy(
            recipe,
            self.place.clear(name),
            model=model,
            environment=environment,
            timeout_s=self.timeout_s,
        )


@contextmanager
def experiment(
    folder: Path, recipe: Recipe, command: str, machine: Machine, timeout_s: float | None
) -> Iterator[Experiment]:
    """Experiments with a bundle that no other process touches meanwhile.

    Raises:
        InputError: where the bundle runs, or another process experiments with it.
    """
    with machine.alone(folder, command) as place:
        if place.stopped:
            machine.tell(f"stopped {place.stopped} processes that an earlier run had left")
        yield Experiment(machine, place, recipe, bundle_model_folder(recipe, folder), timeout_s)


def serving_recipe(folder: Path) -> Recipe:
    """The recipe of a bundle that serves on one node.

    Raises:
        InputError: for another one.
    """
    recipe = read_bundle(folder).recipe
    if recipe.kind != "serving":
        raise InputError(
            f"{recipe.name} trains; its outputs are weights.",
            field="bundle",
            hint="Give a bundle that serves.",
        )
    if recipe.device.count > (recipe.device.per_node or recipe.device.count):
        raise InputError(
            f"{recipe.name} runs on several nodes, of which this is one.",
            field="bundle",
            hint="Give a bundle of one node, for example of one replica.",
        )
    return recipe


def bundle_model_folder(recipe: Recipe, folder: Path) -> str | None:
    """The model's folder where the bundle names one relative to itself; else None."""
    model = recipe.parameters.model or recipe.model.id
    return str((folder / model).resolve()) if model.startswith(("./", "../")) else None
