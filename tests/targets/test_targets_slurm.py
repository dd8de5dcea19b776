"""Slurm scripts in a real Slurm: two emulated nodes, programs that record their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recipe_core.request.supervision import Supervision
from recipe_core.targets import Context, target_files
from tests.fixtures import slurm as slurms
from tests.fixtures.patience import comes
from tests.fixtures.targets import (
    AMD,
    EXAMPLES,
    ROCM,
    context,
    pools,
    replicas,
    single,
    spread,
    training,
    with_parameters,
    write_bundle,
)

pytestmark = pytest.mark.skipif(
    bool(slurms.missing()), reason=f"Slurm is not installed: {', '.join(slurms.missing())}"
)
RUNS = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED")
TELL = """#!/bin/bash
printf '%s\\n' "$SLURM_NODEID" "$(basename "$0")" "cuda=$CUDA_VISIBLE_DEVICES" \\
    "hip=$HIP_VISIBLE_DEVICES" "$@" > "draft-$SLURM_NODEID-$$"
mv "draft-$SLURM_NODEID-$$" "told-$SLURM_NODEID-$$"
"""
AWAIT = "until [ $(ls told-* | wc -l) -ge {count} ]; do sleep 0.1; done\n"
"""A job ends with its first process: each waits until all have started."""
# Two nodes find each other at the address they are given, as torchrun's rendezvous does.
MEET = """#!/usr/bin/env python3
import os, socket, sys, time
host, port = sys.argv[sys.argv.index("--rdzv-endpoint") + 1].rsplit(":", 1)
node = os.environ["SLURM_NODEID"]
if node == "0":
    with socket.create_server((host, int(port))) as server:
        said = server.accept()[0].recv(100)
else:
    for _ in range(1200):
        try:
            with socket.create_connection((host, int(port))) as client:
                said = client.send(b"here") and b"sent"
                break
        except OSError:
            time.sleep(0.1)
open(f"met-{node}", "w").write(said.decode())
"""
SMI = "#!/bin/bash\nfor n in 0 1 2; do echo %r; done\n"
ROCM_SMI = "#!/bin/bash\nprintf 'GPU[%%s]\\t\\t: Card Series: \\t\\t%s\\n' 0 1\n"
BEGIN = "#!/bin/bash\ntouch began\n"
KINDS = {"serving": (single(), "vllm"), "training": (training(1), "torchrun")}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurms.Slurm]:
    partitions = {"debug": ("h100", 2), "amd": ("mi300x", 1)}
    with slurms.cluster(tmp_path_factory.mktemp("slurm"), partitions) as running:
        yield running


@dataclass
class Job:
    """A recipe's job, submitted from its folder."""

    slurm: slurms.Slurm
    folder: Path
    number: str

    def show(self) -> dict[str, str]:
        return self.slurm.show(self.number)

    def signal(self, name: str) -> None:
        """Send what Slurm sends the batch step before the time limit."""
        self.slurm.run("scancel", f"--signal={name}", "--batch", self.number)

    def cancel(self) -> None:
        self.slurm.run("scancel", self.number)

    def wait_for(self, state: Callable[[], Any]) -> None:
        assert comes(lambda: bool(state())), self.show()

    def wait_for_file(self, pattern: str, count: int = 1) -> None:
        self.wait_for(lambda: len([*self.folder.glob(pattern)]) >= count)

    def wait_for_restart(self) -> None:
        self.wait_for(lambda: int(self.show()["Restarts"]) >= 1)

    def end(self) -> dict[str, str]:
        """Wait until the job neither runs nor waits any more; what Slurm says of it."""

        def is_over() -> bool:
            if (state := self.show()["JobState"]) == "PENDING":  # no wait after a requeue
                self.slurm.run("scontrol", "update", f"JobId={self.number}", "StartTime=now")
            return state not in RUNS

        self.wait_for(is_over)
        return self.show()

    def complete(self) -> str:
        """Wait for success; the job's log."""
        shown = self.end()
        assert shown["JobState"] == "COMPLETED", self.log
        return self.log

    @property
    def log(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("*.out"))

    @property
    def commands(self) -> list[list[str]]:
        """Node, program, devices and arguments of each process, in the order of nodes."""
        return [file.read_text().splitlines() for file in sorted(self.folder.glob("told-*"))]


def write(value: Context, folder: Path, **programs: str) -> str:
    """Write the bundle and stand-ins for programs; the path that finds these first."""
    write_bundle(value, folder)
    (folder / "bin").mkdir(parents=True)
    for name, text in programs.items():
        path = folder / "bin" / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    return f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"


def submit(
    slurm: slurms.Slurm, value: Context, folder: Path, *options: str, **programs: str
) -> Job:
    path = write(value, folder, **programs)
    words = ("sbatch", "--parsable", *options, "targets/slurm/job.sbatch")
    done = slurm.run(*words, cwd=folder, PATH=path)
    assert done.returncode == 0, done.stderr
    return Job(slurm, folder, done.stdout.strip())


def refusal(slurm: slurms.Slurm, value: Context, folder: Path, **parameters: str) -> str:
    """Why Slurm refuses the job of a recipe; empty where it takes it."""
    path = write(with_parameters(value, **parameters), folder)
    done = slurm.run("sbatch", "--test-only", "targets/slurm/job.sbatch", cwd=folder, PATH=path)
    return (done.stderr or "refused") if done.returncode else ""


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_slurm_takes_every_example_on_its_devices_only(slurm, tmp_path):
    partitions = {"nvidia": ("debug", "amd"), "amd": ("amd", "debug")}
    for name, value in EXAMPLES.items():
        fits, other = partitions[value.vendor]
        assert refusal(slurm, value, tmp_path / name, partition=fits) == "", name
        if name in ("amd-one-node", "two-nodes", "training-two-nodes"):
            assert refusal(slurm, value, tmp_path / f"{name}-other", partition=other), name
    assert refusal(slurm, context(spread(3)), tmp_path / "three-nodes")
    value = EXAMPLES["amd-one-node"]  # on a cluster whose devices have another type, or none
    for kind in ("h100", "any"):
        assert refusal(slurm, value, tmp_path / kind, partition="debug", gpu_type=kind) == ""
    assert refusal(slurm, value, tmp_path / "other", gpu_type="any", constraint="no&such")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["serving", "training"])
@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_a_job_looks_at_its_devices_before_it_starts(slurm, kind, name, tmp_path):
    launch, program = {"serving": (spread(2), "vllm"), "training": (training(2), "torchrun")}[kind]
    job = submit(slurm, context(launch), tmp_path, nvidia_smi=SMI % name, **{program: BEGIN})
    shown = job.end()
    planned = "H100" in name
    assert (tmp_path / "began").exists() == planned
    assert (f"n1 has {name}; the recipe is for h100-sxm" in job.log) != planned
    if not planned:
        assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")


@pytest.mark.nightly
def test_other_devices_are_taken_on_purpose(slurm, tmp_path):
    option, smi = "--export=ALL,RECIPE_ANY_DEVICE=1", SMI % "NVIDIA L4"
    job = submit(slurm, context(single()), tmp_path, option, vllm=TELL, nvidia_smi=smi)
    job.complete()
    assert job.commands


@pytest.mark.nightly
def test_devices_of_amd_are_looked_at_too(slurm, tmp_path):
    value = with_parameters(context(single(), AMD, image=ROCM), partition="amd")
    for name, code in (("AMD Instinct MI300X OAM", "0:0"), ("AMD Instinct MI210", "2:0")):
        job = submit(slurm, value, tmp_path / code[0], vllm=TELL, rocm_smi=ROCM_SMI % name)
        assert job.end()["ExitCode"] == code
        assert "not checked" not in job.log


def test_two_nodes_start_one_engine(slurm, tmp_path):
    job = submit(slurm, context(spread(2)), tmp_path, vllm=TELL)
    assert "will answer on http://127.0.0.1:8000" in job.complete()
    for node, words in enumerate(job.commands):
        told = (words[0], after(words, "--node-rank"), after(words, "--master-addr"))
        assert told == (str(node), str(node), "127.0.0.1")
    assert job.commands[0][2] == "cuda=0,1,2,3,4,5,6,7"


@pytest.mark.nightly
def test_servers_of_one_node_take_devices_from_those_given(slurm, tmp_path):
    """One of them ends, the node has failed: the job does not hang with half of its servers."""
    waits = TELL + AWAIT.format(count=4)
    job = submit(slurm, context(replicas(4, 2)), tmp_path / "nvidia", vllm=waits)
    job.complete()
    assert sorted((after(words, "--port"), words[2]) for words in job.commands) == [
        (str(8000 + n), f"cuda={2 * n},{2 * n + 1}") for n in range(4)
    ]
    value = with_parameters(context(replicas(4, 2), AMD, image=ROCM), partition="amd")
    job = submit(slurm, value, tmp_path / "amd", vllm=waits)
    job.complete()
    seen = sorted(words[2:4] for words in job.commands)  # not filtered twice
    assert seen == [["cuda=", f"hip={n},{n + 1}"] for n in (0, 2, 4, 6)]


@pytest.mark.nightly
def test_amd_devices_of_a_shared_node_are_found(slurm, tmp_path):
    value = context(single(2), AMD, image=ROCM, devices_per_node=2)
    value = with_parameters(value, partition="amd")
    job = submit(slurm, value, tmp_path, "--mem-per-gpu=1G", vllm=TELL)
    job.complete()
    (words,) = job.commands
    assert words[2:4] == ["cuda=", "hip="]  # ROCR_VISIBLE_DEVICES, which Slurm sets, says it all


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_pools_start_beside_their_router(slurm, nodes, tmp_path):
    value = context(pools(nodes), devices_per_node=8 // nodes)
    waits = TELL + AWAIT.format(count=3)
    job = submit(slurm, value, tmp_path, vllm=waits, vllm_router=waits)
    job.complete()
    commands = {(words[1], words[0]) for words in job.commands}
    assert commands == {("vllm", "0"), ("vllm-router", "0"), ("vllm", str(nodes - 1))}
    assert len(job.commands) == 3
    router = next(words for words in job.commands if words[1] == "vllm-router")
    assert after(router, "--prefill") == "http://127.0.0.1:8001"
    assert after(router, "--decode") == "http://127.0.0.1:8002"


@pytest.mark.nightly
def test_an_engine_that_is_not_installed_is_named(slurm, tmp_path):
    job = submit(slurm, context(single()), tmp_path)
    assert job.end()["JobState"] != "COMPLETED"
    assert "vllm is not installed on this node" in job.log


@pytest.mark.nightly
def test_two_nodes_of_a_training_meet(slurm, tmp_path):
    submit(slurm, context(training(2)), tmp_path, torchrun=MEET).complete()
    assert [(tmp_path / f"met-{node}").read_text() for node in (0, 1)] == ["here", "sent"]


@pytest.mark.nightly
def test_a_training_that_runs_out_of_time_goes_back_to_the_queue(slurm, tmp_path):
    job = submit(slurm, context(training(1)), tmp_path, torchrun=BEGIN + "exec sleep 600\n")
    job.wait_for_file("began")
    job.signal("USR1")
    job.wait_for_restart()
    assert (job.show()["Restarts"], job.show()["JobState"] in RUNS) == ("1", True)
    job.cancel()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_goes_back_to_the_queue_as_often_as_the_recipe_says(slurm, kind, tmp_path):
    launch, program = KINDS[kind]
    value = context(launch, supervision=Supervision(requeues=1))
    fails = {program: "#!/bin/bash\necho started >> starts\nexit 9\n"}
    job = submit(slurm, value, tmp_path, **fails)
    job.wait_for_restart()
    shown = job.end()
    assert (shown["JobState"], shown["Restarts"]) == ("FAILED", "1")
    # right after a requeue srun itself may fail (1), before anything starts
    starts = (tmp_path / "starts").read_text().split()
    assert (shown["ExitCode"], len(starts)) in (("9:0", 2), ("1:0", 1))


@pytest.mark.nightly
def test_what_another_start_would_meet_again_does_not_go_back(slurm, tmp_path):
    """A wrong option (2): no start with the same command helps."""
    shown = submit(slurm, context(single()), tmp_path, vllm="#!/bin/bash\nexit 2\n").end()
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_job_stays_away(slurm, kind, tmp_path):
    launch, program = KINDS[kind]
    job = submit(slurm, context(launch), tmp_path, **{program: BEGIN + "exec sleep 600\n"})
    job.wait_for_file("began")
    job.cancel()
    shown = job.end()
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")


@pytest.mark.nightly
@pytest.mark.parametrize("servers", [1, 2])
def test_servers_are_told_to_stop_before_the_time_limit(slurm, servers, tmp_path):
    finishes = "trap 'touch told-$$; exit 0' TERM\ntouch began-$$"
    waits = f"#!/bin/bash\n{finishes}\nwhile true; do sleep 0.2; done\n"
    job = submit(slurm, context(replicas(servers, 4)), tmp_path, vllm=waits)
    job.wait_for_file("began-*", servers)
    job.signal("TERM")
    assert job.end()["JobState"] == "COMPLETED"
    assert len([*tmp_path.glob("told-*")]) == servers


@pytest.mark.nightly
def test_the_trainer_writes_a_checkpoint_before_the_time_limit(slurm, tmp_path):
    """The stand-in ends when it is asked to by the file that the trainer looks for."""
    waits = BEGIN + "until [ -e run/stop ]; do sleep 0.2; done\ntouch saved\n"
    job = submit(slurm, context(training(1), engine="torch"), tmp_path, torchrun=waits)
    job.wait_for_file("began")
    job.signal("USR1")
    job.wait_for_restart()
    job.cancel()
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "run" / "stop").exists()
    assert (tmp_path / "run" / f"slurm-{job.number}.planned").read_text() == "1\n"


def test_whole_nodes_are_asked_for_where_all_devices_are_used():
    whole, part = (
        target_files(context(single(n), devices_per_node=n))["targets/slurm/job.sbatch"]
        for n in (8, 2)
    )
    assert "--exclusive\n" in whole
    assert "--mem=0\n" in whole
    assert "--exclusive" not in part
    assert "--cpus-per-gpu=8\n" in part
