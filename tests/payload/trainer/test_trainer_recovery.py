"""Real torchrun jobs that break, are damaged, split anew, or lose a rank and its device."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from recipe_core.payload.launcher.events import read_events
from tests.fixtures.bundles import TRAINING, Bundle, training_json
from tests.fixtures.ports import free_port
from tests.payload.trainer.conftest import Job, needs_torch, settings

pytestmark = [pytest.mark.torchrun, pytest.mark.nightly, needs_torch]
pytest.importorskip("torch")

from recipe_core.payload.trainer.checkpoint import damage
from recipe_core.payload.trainer.hf import list_hf_checkpoints

SHARDED = {"dp": 2, "shard": 2, "zero_stage": 3}
POISON = '''
import os
from trainer.steps import Passes

clean, calls, rank = Passes.run, [], os.environ["RANK"]

def poisoned(self, batches):
    """Passes whose loss is broken on the last rank, in so many calls of the first start."""
    loss = clean(self, batches)
    calls.append(None)
    first = not os.path.exists(os.path.join(HERE, "run", "rollbacks.json")) or {always}
    if first and rank == str(int(os.environ["WORLD_SIZE"]) - 1) and len(calls) in {steps}:
        loss = loss {change}
    return loss

Passes.run = poisoned

'''
HF_POISON = """
from trainer.rollbacks import Watch

judge = Watch.see

def poisoned(self, step, loss, norm):
    first = not os.path.exists(os.path.join(HERE, "run", "rollbacks.json"))
    return judge(self, step, float("nan") if first and step == 3 else loss, norm)

Watch.see = poisoned

"""


def poison(job, steps, change, always=False):
    job.patch_script(POISON.format(steps=steps, change=change, always=always))


def end(job):
    return json.loads((job.run_folder / "end.json").read_text())


def test_a_loss_that_is_no_number_is_rolled_back_and_its_batch_left_out(whole, tmp_path):
    job = Job(tmp_path / "job", split=SHARDED, checkpoints={"every_steps": 1})
    poison(job, [3], "* float('nan')")
    broken = "the loss of step 3 is not a number; the next start goes on from step 2"
    assert job.fail(2).count(f"train: {broken} and leaves out batches 2 to 2.") == 1
    assert end(job)["code"] == 3
    assert "resuming after step 2" in job.finish(2)
    losses = job.losses()
    assert len(losses) == 4
    assert losses[:2] == pytest.approx(whole.losses()[:2], abs=2e-5)
    assert losses[2] != pytest.approx(whole.losses()[2], abs=2e-5)
    assert (job.run_folder / "model").is_dir()


def test_a_spike_is_not_saved_and_goes_back_before_its_first_step(tmp_path):
    guard = {"window": 10, "patience": 2}
    job = Job(tmp_path / "job", steps=16, guard=guard, checkpoints={"every_steps": 1})
    poison(job, [13, 14], "+ 50")
    assert "the loss of steps 13 to 14 is a spike" in job.fail(1)
    assert job.checkpoints() == ["step-11", "step-12"]
    assert "resuming after step 12" in job.finish(1)
    assert len(job.losses()) == 16


def test_a_run_that_breaks_at_every_start_gives_up_with_what_to_change(tmp_path):
    job = Job(tmp_path / "job", guard={"rollbacks": 1})
    poison(job, [2], "* float('nan')", always=True)
    for code in (3, 2, 2):
        job.fail(1)
        assert end(job)["code"] == code
    assert "after 1 rollbacks that did not help. Lower learning_rate" in end(job)["message"]


def test_a_stopped_run_goes_on_with_the_same_losses_on_other_devices_or_another_split(
    whole, tmp_path
):
    """Replicas change the share of each, and micro-batches how often gradients are added up."""
    elastic = Job(tmp_path / "dp", split=SHARDED | {"zero_stage": 2}, elastic=True)
    tensors = Job(tmp_path / "tp", split={"tp": 2, "sequence_parallel": True})
    pipeline = Job(tmp_path / "pp", split={"pp": 2, "zero_stage": 2})
    jobs = [elastic, tensors, pipeline]
    for job in jobs:
        job.ask_to_stop()
    assert Job.run_several(jobs, 2).count("stopped after step 1 of 4") == 3
    assert [len(job.losses()) for job in jobs] == [1, 1, 1]
    tensors.write(split={})
    pipeline.write(split=SHARDED)
    resumed = Job.run_several([elastic, tensors], 1) + pipeline.finish(2)
    assert resumed.count("resuming after step 1") == 3
    for job in jobs:
        assert job.losses() == pytest.approx(whole.losses(), abs=2e-5), job.root.name


def test_transformers_trainer_goes_back_and_stops_with_a_checkpoint_on_request(tmp_path):
    pytest.importorskip("accelerate")
    job = Job(tmp_path / "job", checkpoints={"every_steps": 1})
    job.patch_script(HF_POISON, "hf")
    broken = "the loss of step 3 is not a number; the next start goes on from step 2"
    assert broken in job.fail(1)
    assert end(job)["code"] == 3
    job.ask_to_stop()
    job.finish(1)
    assert [path.name for _, path in list_hf_checkpoints(job.run_folder / "checkpoints")][
        -1
    ] == "checkpoint-3"
    assert not (job.run_folder / "stop").exists()
    assert len(job.losses()) == 3
    job.finish(1)
    assert len(job.losses()) == 4
    assert (job.run_folder / "model" / "config.json").is_file()


PARTS = {"split": SHARDED | {"zero_stage": 2}, "checkpoints": {"every_steps": 1, "keep": 2}}


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path):
    """One bit in the largest run of a file's own bytes: the middle of a tensor."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS = {
    "__1_0.distcp is cut short": ("__1_0.distcp", cut),
    "__0_0.distcp differs from its check sums": ("__0_0.distcp", flip),
    "__1_0.distcp: No such file or directory": ("__1_0.distcp", Path.unlink),
    ".metadata: pickle data was truncated": (".metadata", cut),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of two processes that ended after three of its steps, two checkpoints kept."""
    job = Job(tmp_path_factory.mktemp("stopped") / "job", steps=3, **PARTS)
    job.finish(2)
    return job


@pytest.fixture
def copied(stopped, tmp_path):
    """The same run once more, to go on for two steps, and its checkpoints."""
    root = tmp_path / "job"
    shutil.copytree(stopped.root, root)
    shutil.rmtree(root / "trainer")
    return Job(root, steps=5, **PARTS), root / "run" / "checkpoints"


def test_damage_is_seen_in_the_files(stopped, tmp_path):
    for fault, (name, harm) in HARMS.items():
        folder = tmp_path / fault
        shutil.copytree(stopped.run_folder / "checkpoints" / "step-3", folder)
        assert damage(folder, 0, 1) is None
        harm(folder / name)
        assert damage(folder, 0, 1) == fault
        assert fault in [damage(folder, rank, 2) for rank in range(2)]
    # a checkpoint of transformers that was cut short does not count
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    assert [path.name for _, path in list_hf_checkpoints(tmp_path)] == [
        "checkpoint-9",
        "checkpoint-10",
    ]


def test_a_damaged_newest_one_is_stepped_over_by_all_ranks(stopped, copied):
    """Only one rank's file is damaged; the step is written again, and the damaged one is kept."""
    job, folder = copied
    cut(folder / "step-3" / "__1_0.distcp")
    shown = job.finish(2)
    damaged = "step-3 is damaged (__1_0.distcp is cut short); it is now step-3.damaged, and step-2"
    assert shown.count(damaged) == 1
    assert "resuming after step 2" in shown
    assert job.losses()[:3] == stopped.losses()
    assert job.checkpoints() == ["step-3.damaged", "step-4", "step-5"]


def test_a_run_does_not_start_anew_where_no_checkpoint_can_be_read(copied):
    job, folder = copied
    before = job.checkpoints()
    for step in (2, 3):
        cut(folder / f"step-{step}" / "__0_0.distcp")
    shown = job.fail(2)
    unread = "step-3 cannot be read or does not fit this model (__0_0.distcp is cut short), nor can"
    assert unread in shown
    assert f"move {folder} away to start from step 0." in shown
    assert job.checkpoints() == before


# Under the bundle's launcher

KEPT = {"steps": 8, "checkpoints": {"every_steps": 2}}
SMI = """#!{python} -I
for device in range(int(open({count!r}).read())):
    print("Pretend GPU, 81559, 81000")
"""
FATE = '''
import os
import signal
import time
from pathlib import Path
from trainer.steps import Passes

clean, calls = Passes.run, []
RUN, COUNT = Path(HERE) / "run", Path({count!r})

def fated(self, batches):
    """In the fourth step of two ranks one dies with its device; one rank brings it back."""
    calls.append(None)
    alone = os.environ["WORLD_SIZE"] == "1"
    if not alone and len(calls) == 4 and os.environ["RANK"] == "1" and not (RUN / "lost").exists():
        (RUN / "lost").touch()
        COUNT.write_text("1")
        os.kill(os.getpid(), signal.SIGKILL)
    if alone and len(calls) == 2:
        COUNT.write_text("2")
        while not (RUN / "stop").exists():
            time.sleep(0.05)
    return clean(self, batches)

Passes.run = fated

'''


def bundle_of(job, tools):
    """A bundle of two pretended devices, with a fallback of one."""
    count = tools / "count"
    count.write_text("2")
    tool = tools / "nvidia-smi"
    tool.write_text(SMI.format(python=sys.executable, count=str(count)))
    tool.chmod(0o755)
    job.patch_script(FATE.format(count=str(count)))
    bundle = Bundle(job.root, free_port())
    launch = training_json(bundle.port, job.root, 8, 1)
    launch["needs"] |= {"runtime": "cuda", "names": ["Pretend GPU"], "count": 2}
    launch["supervision"] = {"backoff_s": 0.1, "poll_s": 0.1, "hang_s": 600}
    words = "--nproc-per-node 2 --master-addr ${head} --master-port ${port} ${root}/train.py"
    argv = [*words.split(), "--out", "${run}", "--config", "${root}/train.json"]
    argv.insert(0, str(Path(sys.executable).parent / "torchrun"))
    launch["processes"][0] |= {"argv": argv, "env": {"OMP_NUM_THREADS": "1"}}
    expected = {"schema_version": 1, "run": {"steps": 8}, "training": TRAINING, "bands": {}}
    for name, data in (("launch.json", launch), ("expected.json", expected)):
        (job.root / name).write_text(json.dumps(data))
    fewer = "fallbacks/1-fewer-gpus"

    def alone(data):
        argv[2], argv[-1] = "1", f"${{root}}/{fewer}/train.json"
        data["needs"]["count"] = 1
        data["processes"][0] |= {"argv": argv, "devices": [0]}

    bundle.add_fallback("1-fewer-gpus", alone)
    (job.root / fewer / "train.json").write_text(json.dumps(settings(**KEPT)))
    bundle.seal()
    return bundle


def test_a_run_loses_a_rank_and_its_device_and_gets_it_back_and_learns_the_same(
    tmp_path, monkeypatch, capsys
):
    whole = Job(tmp_path / "whole", **KEPT)
    whole.finish(1)
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    job = Job(tmp_path / "job", split=SHARDED, **KEPT)
    bundle = bundle_of(job, tools)
    code = bundle.run("up", "--foreground")
    seen = read_events(bundle.root / "run")
    assert code == 0, (capsys.readouterr().err, seen)
    expected = "start keeper_start died device_lost fallback restart device_found first_choice "
    expected += "restart finished keeper_stop"
    assert [event["event"] for event in seen] == expected.split()
    restarts = [event for event in seen if event["event"] == "restart"]
    assert [(each["step"], each["world_size"]) for each in restarts] == [(2, 1), (4, 2)]
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)
    assert (job.run_folder / "model").is_dir()
    log = (bundle.root / "run" / "trainer-0.log").read_text()
    assert "resuming after step 4" in log
