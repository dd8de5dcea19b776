"""Rendered bundles train for real, as their targets would let them, die, and go on where they were.

Each tool has an environment of its own (``scripts/trainers_cpu``, ``make test-life``). The process
sees what its target's files mount and set, nothing else: the bundle read-only, no network, and a
user who is not root.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from recipe_core.engines.training_programs import training_engine
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import table
from tests.life import processor, sandbox
from tests.life.runs import Case, lived
from tests.life.sandbox import Image, Mount, Start, live
from tests.life.tiny_model import write_model

ROWS = [
    (
        environment,
        Case(
            engine=engine,
            method=method,
            target=target,
            split=split,
            workload=work,
            device="h100-sxm" if method in table("life", "for_gpus").get(engine, ()) else "cpu",
        ),
    )
    for environment, engine, method, target, split, work in table("life", "started")
]
GPU = processor.DEVICE
isolated = pytest.mark.skipif(
    sandbox.refused() is not None,
    reason=f"NOT TESTED: living bundles, because {sandbox.refused()}",
)


def image_of(environment: str, engine: str) -> Image:
    """The environment of a tool, or a skip that says how to get one."""
    folder = ROOT / f".venv-{environment}"
    if not (folder / "bin" / "python").is_file():
        pytest.skip(f"NOT TESTED: starting {engine}, because there is none (make test-life)")
    return Image(folder=folder, env=processor.VARIABLES.get(engine, {}))


@isolated
@pytest.mark.nightly
@pytest.mark.parametrize(("environment", "case"), ROWS, ids=[str(case) for _, case in ROWS])
def test_a_bundle_trains_and_goes_on_after_its_death(
    tmp_path: Path, environment: str, case: Case
) -> None:
    """Two steps and their checkpoints; without the second, the next start makes that step alone."""
    image = image_of(environment, case.engine)
    tmp_path.chmod(0o755)
    seen = lived(case, image, write_model(tmp_path / "model"), tmp_path)
    assert seen.steps == (1, 2)
    assert seen.first.keys() == seen.again.keys() == {1, 2}
    assert all(0 < loss < 8 for loss in seen.first.values())
    assert seen.kept
    assert seen.again == pytest.approx(seen.first, rel=1e-4)


def test_what_is_installed_is_what_bundles_are_pinned_to() -> None:
    """The script names the packages of each Containerfile."""
    script = (ROOT / "scripts" / "trainers_cpu").read_text()
    for engine in ("accelerate", "trl", "llama-factory", "axolotl"):
        container = training_engine(engine).container
        assert container
        for package in container.packages:
            name, _, version = package.partition("==")
            assert package in script or (name, f"deepspeed={version}" in script) == (
                "deepspeed",
                True,
            )


@isolated
def test_a_sandbox_has_what_is_mounted_and_no_more(tmp_path: Path) -> None:
    """A folder that is read-only refuses root's writes too; no machine is reached."""
    place = tmp_path / "place"
    for name in ("bundle", "run"):
        (place / name).mkdir(parents=True)
    (place / "bundle" / "file").write_text("here")
    (place / "run").chmod(0o777)
    probe = (
        "cat /bundle/file; echo 1 > /run/me/made; "
        "touch /bundle/new || echo refused; [ -e /root/.cache ] || echo bare; "
        "id -u; (echo > /dev/tcp/192.0.2.1/80) 2>/dev/null || echo alone; env | sort"
    )
    start = Start(
        words=["bash", "-c", probe],
        env={"GIVEN": "1"},
        cwd="/run/me",
        mounts=(
            Mount("/bundle", place / "bundle", readonly=True),
            Mount("/run/me", place / "run"),
        ),
        user=1000,
        group=1000,
    )
    folder = tmp_path / "venv"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(folder)], check=True)
    assert live(start, Image(folder=folder), tmp_path / "life") == 0
    said = (tmp_path / "life" / "log").read_text().splitlines()
    assert said[0].startswith("here")
    assert {"refused", "bare", "alone", "GIVEN=1"} <= {line.removeprefix("here") for line in said}
    assert not any(line.startswith(("PYTEST", "PYTHON")) for line in said)
    assert (place / "run" / "made").read_text() == "1\n"
