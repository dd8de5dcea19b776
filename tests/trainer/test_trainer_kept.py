"""A real run on gloo under the bundle's launcher: a rank is killed, a device lost and found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher.events import read
from tests.fixtures.bundles import TRAINING, Bundle, training_json
from tests.fixtures.ports import free_port
from tests.trainer.conftest import Job, needs_torch, settings

pytestmark = [pytest.mark.torchrun, pytest.mark.nightly, needs_torch]
STEPS = 8
PARTS: dict[str, Any] = {"steps": STEPS, "checkpoints": {"every_steps": 2}}
BOTH = {"dp": 2, "shard": 2, "zero_stage": 3}
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


def fated(self, batches, learned):
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
    return clean(self, batches, learned)


Passes.run = fated

'''


def bundle_of(job: Job, tools: Path) -> Bundle:
    """A bundle of two pretended devices, with a fallback of one."""
    count = tools / "count"
    count.write_text("2")
    tool = tools / "nvidia-smi"
    tool.write_text(SMI.format(python=sys.executable, count=str(count)))
    tool.chmod(0o755)
    job.patch_script(FATE.format(count=str(count)))
    folder = job.root / "fallbacks" / "1-fewer-gpus"
    folder.mkdir(parents=True)
    (folder / "train.json").write_text(json.dumps(settings(**PARTS)))
    port = free_port()
    first, second = (launch(job, port, devices) for devices in (2, 1))
    title = "fewer gpus: 1 x Pretend GPU, one device"
    first["fallbacks"] = [{"name": folder.name, "kind": "fewer-gpus", "title": title}]
    expected = {"schema_version": 1, "run": {"steps": STEPS}, "training": TRAINING, "bands": {}}
    for place, data in ((job.root, first), (folder, second)):
        (place / "launch.json").write_text(json.dumps(data))
        (place / "expected.json").write_text(json.dumps(expected))
    bundle = Bundle(job.root, port)
    bundle.seal()
    return bundle


def launch(job: Job, port: int, devices: int) -> dict[str, Any]:
    data = training_json(port, job.root, STEPS, 1)
    data["needs"] |= {"runtime": "cuda", "names": ["Pretend GPU"], "count": devices}
    data["supervision"] = {"backoff_s": 0.1, "poll_s": 0.1, "hang_s": 600}
    config = "${root}/train.json" if devices == 2 else "${root}/fallbacks/1-fewer-gpus/train.json"
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(devices)]
    meeting = ["--master-addr", "${head}", "--master-port", "${port}"]
    words = ["${root}/train.py", "--config", config, "--out", "${run}"]
    (process,) = data["processes"]
    process["argv"], process["devices"] = [*torchrun, *meeting, *words], list(range(devices))
    process["env"] = {"OMP_NUM_THREADS": "1"}
    return data


def test_a_run_loses_a_rank_and_its_device_and_gets_it_back_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Job(tmp_path / "whole", **PARTS)
    whole.finish(1)
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    job = Job(tmp_path / "job", split=BOTH, **PARTS)
    bundle = bundle_of(job, tools)
    code = bundle.run("up", "--foreground")
    seen = read(bundle.root / "run")
    assert code == 0, (capsys.readouterr().err, seen)
    expected = "start keeper_start died device_lost fallback restart device_found first_choice"
    assert [event["event"] for event in seen] == [
        *expected.split(),
        "restart",
        "finished",
        "keeper_stop",
    ]
    restarts = [event for event in seen if event["event"] == "restart"]
    assert [(each["step"], each["world_size"]) for each in restarts] == [(2, 1), (4, 2)]
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)
    assert (job.run_folder / "model").is_dir()
    log = (bundle.root / "run" / "trainer-0.log").read_text()
    assert "resuming after step 4" in log
