"""The life of a job over several time limits, in a real Slurm that is told of them at once.

A stand-in for the trainer makes quick steps and keeps the rules of the real one: what makes it
write a checkpoint (``saves_on``), and where the next start goes on.
"""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from tests.fixtures import slurm as slurms
from tests.fixtures.targets import context, training

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        bool(slurms.missing()), reason=f"Slurm is not installed: {', '.join(slurms.missing())}"
    ),
]
STEPS, EVERY = 60, 10
# Writes the step it came to; a checkpoint every EVERY steps, and where it is told to stop.
TRAINER = f"""#!/usr/bin/env python3
import os, pathlib, signal, sys, time
run = pathlib.Path(os.environ.get("RECIPE_RUN", "run"))
run.mkdir(exist_ok=True)
saved, began = run / "checkpoint", run / "began"
told = []
if "%(way)s" == "signal":
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
step = int(saved.read_text()) if saved.exists() and saved.read_text() else 0
with began.open("a") as starts:
    starts.write(f"{{step}}\\n")

def save():
    new = saved.with_suffix(".new")
    with new.open("w") as file:
        file.write(str(step) + " " * %(bytes)d)
        file.flush()
        os.fsync(file.fileno())
    new.replace(saved)

while step < {STEPS}:
    time.sleep(0.05)
    step += 1
    (run / "step").write_text(str(step))
    stop = told or ("%(way)s" == "stop-file" and (run / "stop").exists())
    if stop or step %% {EVERY} == 0 or step == {STEPS}:
        save()
    if stop:
        sys.exit(0)
    if step == %(waits)d:
        (run / "waits").touch()
        while not (told or (run / "stop").exists() or (run / "go").exists()):
            time.sleep(0.05)
"""


def trainer(way, waits=0, size=0):
    return TRAINER % {"way": way, "waits": waits, "bytes": size}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurms.cluster(tmp_path_factory.mktemp("slurm"), {"debug": ("h100", 2)}) as running:
        yield running


def value(engine, nodes=1):
    return context(training(nodes), engine=engine)


def at_limit(job, number, folder, text):
    """Let the job come to its limit for the ``number``-th time, and start ``text`` after it."""
    job.wait_for_file("run/waits")
    (folder / "run" / "waits").unlink()
    (folder / "bin" / "torchrun").write_text(text)
    job.signal("USR1")
    job.run_again(number)


@pytest.mark.parametrize(
    ("engine", "way", "from_steps"),
    [
        ("torch", "stop-file", [0, 26, 51]),  # each start goes on where the last one was stopped
        ("megatron", "signal", [0, 26, 51]),
        ("torchtitan", "none", [0, 20, 50]),  # only from what it had saved by itself
    ],
)
def test_a_run_gets_past_its_time_limits(slurm, engine, way, from_steps, tmp_path):
    """Two limits in a row: every start makes progress, none counts as a failure."""
    first, second = trainer(way, waits=25), trainer(way, waits=50 if way != "none" else 55)
    job = slurm.submit(value(engine), tmp_path, torchrun=first)
    at_limit(job, 1, tmp_path, second)
    at_limit(job, 2, tmp_path, trainer(way))
    assert job.end()["JobState"] == "COMPLETED", job.log
    assert [int(step) for step in (tmp_path / "run" / "began").read_text().split()] == from_steps
    assert (tmp_path / "run" / "checkpoint").read_text() == str(STEPS)
    assert (tmp_path / "run" / f"slurm-{job.number}.planned").read_text() == "2\n"
    assert "gave up" not in job.log


def test_a_limit_before_the_first_checkpoint_is_said_at_once(slurm, tmp_path):
    """Whoever set it: nothing is started that would begin anew for ever."""
    estimate = {"training": {"step_s": 30.0}, "run": {"checkpoint_s": 60.0, "restart_s": 60.0}}
    late = {**estimate, "run": {**estimate["run"], "checkpoint_interval_s": 7200.0}}
    for engine, known, needed in (("torchtitan", late, 7200), ("torch", estimate, 285)):
        folder = tmp_path / engine
        job = slurm.submit(
            context(training(1), engine=engine, estimate=known),
            folder,
            "--time=4",
            torchrun=trainer("none"),
        )
        shown = job.end()
        assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")
        assert "before it writes a checkpoint" in job.log
        minutes = int(job.log.split("--time=")[1].split()[0])
        assert minutes * 60 >= needed
        assert not (folder / "run" / "began").exists()


def test_a_node_that_goes_away_costs_what_came_after_the_last_checkpoint(slurm, tmp_path):
    job = slurm.submit(value("torchtitan"), tmp_path, torchrun=trainer("none", waits=25))
    job.wait_for_file("run/waits")
    node = job.show()["NodeList"]
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    (tmp_path / "bin" / "torchrun").write_text(trainer("none"))
    shown = job.end()
    slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert shown["JobState"] == "COMPLETED", job.log
    assert (tmp_path / "run" / "began").read_text().split() == ["0", "20"]


@contextmanager
def small_disk(folder, size):
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() or subprocess.run(words).returncode:
        pytest.skip("NOT TESTED: mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_keeps_the_newest_checkpoint_and_ends_the_job(slurm, tmp_path):
    disk, folder = tmp_path / "disk", tmp_path / "bundle"
    with small_disk(disk, 64 << 10):
        space = f"--export=ALL,RECIPE_RUN={disk}"
        fills = trainer("none", size=40 << 10)  # the second one has no room beside the first
        job = slurm.submit(value("torchtitan"), folder, space, torchrun=fills)
        shown = job.end()
        assert shown["JobState"] == "FAILED", job.log
        assert "No space left on device" in job.log
        assert "gave up" in job.log or int(shown["Restarts"]) >= 1
        assert (disk / "checkpoint").read_text().split() == [str(EVERY)]
