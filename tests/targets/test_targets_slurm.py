"""Slurm scripts in a real Slurm: two emulated nodes, programs that record their arguments."""

from __future__ import annotations

import time

import pytest

from recipe_core.request.supervision import Supervision
from recipe_core.targets import target_files
from tests.fixtures import slurm as slurms
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
WAIT_S = 90

TELL = """#!/bin/bash
printf '%s\\n' "$SLURM_NODEID" "$(basename "$0")" "cuda=$CUDA_VISIBLE_DEVICES" \\
    "hip=$HIP_VISIBLE_DEVICES" "$@" > "told-$SLURM_NODEID-$$"
"""
# Two nodes find each other at the address they are given, as torchrun's rendezvous does.
MEET = """#!/usr/bin/env python3
import os, socket, sys, time
host, port = sys.argv[sys.argv.index("--rdzv-endpoint") + 1].rsplit(":", 1)
node = os.environ["SLURM_NODEID"]
if node == "0":
    with socket.create_server((host, int(port))) as server:
        said = server.accept()[0].recv(100)
else:
    for _ in range(200):
        try:
            with socket.create_connection((host, int(port))) as client:
                said = client.send(b"here") and b"sent"
                break
        except OSError:
            time.sleep(0.1)
open(f"met-{node}", "w").write(said.decode())
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    partitions = {"debug": ("h100", 2), "amd": ("mi300x", 1)}
    with slurms.cluster(tmp_path_factory.mktemp("slurm"), partitions) as running:
        yield running


def bundle(value, folder, **programs):
    """The bundle and, first on the path, stand-ins for engines."""
    write_bundle(value, folder)
    (folder / "bin").mkdir()
    for name, text in programs.items():
        path = folder / "bin" / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    return f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"


def submitted(slurm, folder, path, *options):
    done = slurm.run(
        "sbatch", "--parsable", *options, "targets/slurm/job.sbatch", cwd=folder, PATH=path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def finished(slurm, job, folder):
    until = time.monotonic() + WAIT_S
    while (shown := slurm.show(job))["JobState"] in (
        "PENDING",
        "RUNNING",
        "COMPLETING",
        "CONFIGURING",
    ):
        assert time.monotonic() < until, shown
        time.sleep(0.3)
    log = "".join(file.read_text() for file in folder.glob("*.out"))
    assert shown["JobState"] == "COMPLETED", log
    return log


def told(folder):
    return [file.read_text().splitlines() for file in sorted(folder.glob("told-*"))]


def after(words, flag):
    return words[words.index(flag) + 1]


def test_a_router_is_told_of_pools_on_other_nodes(slurm, tmp_path):
    path = bundle(
        context(pools(2), devices_per_node=4),
        tmp_path,
        vllm=TELL + "sleep 2\n",
        vllm_router=TELL + "sleep 2\n",
    )
    finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    said = {(words[0], words[1]): words for words in told(tmp_path)}
    assert set(said) == {("0", "vllm"), ("0", "vllm-router"), ("1", "vllm")}
    assert after(said["0", "vllm-router"], "--decode") == "http://127.0.0.1:8002"


@pytest.mark.parametrize("name", EXAMPLES)
def test_slurm_takes_every_example(slurm, name, tmp_path):
    partition = {"nvidia": "debug", "amd": "amd"}[EXAMPLES[name].vendor]
    assert why_refused(slurm, EXAMPLES[name], tmp_path, partition=partition) == ""


def why_refused(slurm, value, folder, **parameters):
    """Why Slurm refuses the job of a recipe; empty where it takes it."""
    path = bundle(with_parameters(value, **parameters), folder)
    done = slurm.run("sbatch", "--test-only", "targets/slurm/job.sbatch", cwd=folder, PATH=path)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("name", ["amd-one-node", "two-nodes", "training-two-nodes"])
def test_slurm_refuses_a_partition_of_other_devices(slurm, name, tmp_path):
    partition = {"nvidia": "amd", "amd": "debug"}[EXAMPLES[name].vendor]
    assert why_refused(slurm, EXAMPLES[name], tmp_path, partition=partition)


def test_slurm_takes_the_name_that_its_cluster_has(slurm, tmp_path):
    """A cluster that calls MI300X something else, and one whose devices have no type."""
    value = EXAMPLES["amd-one-node"]
    for n, kind in enumerate(("h100", "any")):
        folder = tmp_path / str(n)
        folder.mkdir()
        assert why_refused(slurm, value, folder, partition="debug", gpu_type=kind) == ""
    refused = tmp_path / "refused"
    refused.mkdir()
    assert why_refused(slurm, value, refused, gpu_type="any", constraint="no&such")


SMI = "#!/bin/bash\nfor n in 0 1 2; do echo %r; done\n"
ROCM_SMI = "#!/bin/bash\nprintf 'GPU[%%s]\\t\\t: Card Series: \\t\\t%s\\n' 0 1\n"


@pytest.mark.parametrize("kind", ["serving", "training"])
@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_a_job_looks_at_its_devices_before_it_starts(slurm, kind, name, tmp_path):
    launch, program = {"serving": (spread(2), "vllm"), "training": (training(2), "torchrun")}[kind]
    programs = {program: "#!/bin/bash\ntouch began\n"}
    path = bundle(context(launch), tmp_path, nvidia_smi=SMI % name, **programs)
    shown = ended(slurm, submitted(slurm, tmp_path, path))
    log = "".join(file.read_text() for file in tmp_path.glob("*.out"))
    planned = "H100" in name
    assert (tmp_path / "began").exists() == planned
    assert (f"n1 has {name}; the recipe is for h100-sxm" in log) != planned
    if not planned:
        assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")


def test_other_devices_are_taken_on_purpose(slurm, tmp_path):
    path = bundle(context(single()), tmp_path, vllm=TELL, nvidia_smi=SMI % "NVIDIA L4")
    finished(slurm, submitted(slurm, tmp_path, path, "--export=ALL,RECIPE_ANY_DEVICE=1"), tmp_path)
    assert told(tmp_path)


def test_devices_of_amd_are_looked_at_too(slurm, tmp_path):
    value = with_parameters(context(single(), AMD, image=ROCM), partition="amd")
    path = bundle(value, tmp_path, vllm=TELL, rocm_smi=ROCM_SMI % "AMD Instinct MI300X OAM")
    log = finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    assert "not checked" not in log
    other = tmp_path / "other"
    other.mkdir()
    path = bundle(value, other, vllm=TELL, rocm_smi=ROCM_SMI % "AMD Instinct MI210")
    assert ended(slurm, submitted(slurm, other, path))["ExitCode"] == "2:0"


def test_slurm_refuses_more_nodes_than_there_are(slurm, tmp_path):
    path = bundle(context(spread(3)), tmp_path)
    done = slurm.run("sbatch", "--test-only", "targets/slurm/job.sbatch", cwd=tmp_path, PATH=path)
    assert done.returncode != 0


def test_two_nodes_start_one_engine(slurm, tmp_path):
    path = bundle(context(spread(2)), tmp_path, vllm=TELL)
    log = finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    leader, worker = told(tmp_path)
    assert "will answer on http://127.0.0.1:8000" in log
    assert (leader[0], after(leader, "--node-rank"), after(leader, "--master-addr")) == (
        "0",
        "0",
        "127.0.0.1",
    )
    assert (worker[0], after(worker, "--node-rank"), after(worker, "--master-addr")) == (
        "1",
        "1",
        "127.0.0.1",
    )
    assert leader[2] == "cuda=0,1,2,3,4,5,6,7"


def test_servers_of_one_node_take_devices_from_those_given(slurm, tmp_path):
    """One of them ends, the node has failed: the job does not hang with half of its servers."""
    path = bundle(context(replicas(4, 2)), tmp_path, vllm=TELL + "sleep 2\n")
    finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    assert sorted((after(words, "--port"), words[2]) for words in told(tmp_path)) == [
        ("8000", "cuda=0,1"),
        ("8001", "cuda=2,3"),
        ("8002", "cuda=4,5"),
        ("8003", "cuda=6,7"),
    ]


def test_amd_devices_are_not_filtered_twice(slurm, tmp_path):
    value = with_parameters(context(replicas(4, 2), AMD, image=ROCM), partition="amd")
    path = bundle(value, tmp_path, vllm=TELL + "sleep 2\n")
    finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    assert sorted(words[2:4] for words in told(tmp_path)) == [
        ["cuda=", f"hip={n},{n + 1}"] for n in (0, 2, 4, 6)
    ]


def test_amd_devices_of_a_shared_node_are_found(slurm, tmp_path):
    value = context(single(2), AMD, image=ROCM, devices_per_node=2)
    path = bundle(with_parameters(value, partition="amd"), tmp_path, vllm=TELL)
    finished(slurm, submitted(slurm, tmp_path, path, "--mem-per-gpu=1G"), tmp_path)
    (words,) = told(tmp_path)
    assert words[2:4] == ["cuda=", "hip="]  # ROCR_VISIBLE_DEVICES, which Slurm sets, says it all


def test_pools_start_beside_their_router(slurm, tmp_path):
    path = bundle(
        context(pools()), tmp_path, vllm=TELL + "sleep 2\n", vllm_router=TELL + "sleep 2\n"
    )
    finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    assert sorted(words[1] for words in told(tmp_path)) == ["vllm", "vllm", "vllm-router"]
    router = next(words for words in told(tmp_path) if words[1] == "vllm-router")
    assert after(router, "--prefill") == "http://127.0.0.1:8001"


def test_an_engine_that_is_not_installed_is_named(slurm, tmp_path):
    path = bundle(context(single()), tmp_path)
    job = submitted(slurm, tmp_path, path)
    with pytest.raises(AssertionError, match="vllm is not installed on this node"):
        finished(slurm, job, tmp_path)


def test_two_nodes_of_a_training_meet(slurm, tmp_path):
    path = bundle(context(training(2)), tmp_path, torchrun=MEET)
    finished(slurm, submitted(slurm, tmp_path, path), tmp_path)
    assert ((tmp_path / "met-0").read_text(), (tmp_path / "met-1").read_text()) == ("here", "sent")


def test_a_training_that_runs_out_of_time_goes_back_to_the_queue(slurm, tmp_path):
    path = bundle(context(training(1)), tmp_path, torchrun="#!/bin/bash\ntouch began\nsleep 60\n")
    job = submitted(slurm, tmp_path, path)
    until = time.monotonic() + WAIT_S
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until, slurm.show(job)
        time.sleep(0.2)
    slurm.run("scancel", "--signal=USR1", "--batch", job)  # what Slurm sends before the limit
    while slurm.show(job)["Restarts"] != "1":
        assert time.monotonic() < until, slurm.show(job)
        time.sleep(0.2)
    assert slurm.show(job)["JobState"] in ("PENDING", "COMPLETING", "RUNNING", "REQUEUED")
    slurm.run("scancel", job)


def restarted(slurm, job, times):
    """Waits until a job was put back so many times; what Slurm says of it then."""
    until = time.monotonic() + WAIT_S
    while int((shown := slurm.show(job))["Restarts"]) < times:
        assert time.monotonic() < until, shown
        time.sleep(0.2)
    return shown


def ended(slurm, job):
    """What Slurm says of a job that neither runs nor waits any more."""
    until = time.monotonic() + WAIT_S
    while (shown := slurm.show(job))["JobState"] in (
        "PENDING",
        "RUNNING",
        "COMPLETING",
        "CONFIGURING",
        "REQUEUED",
    ):
        assert time.monotonic() < until, shown
        if shown["JobState"] == "PENDING":  # do not wait out the delay after a requeue
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(0.3)
    return shown


@pytest.mark.parametrize("kind", ["serving", "training"])
def test_a_failure_goes_back_to_the_queue_as_often_as_the_recipe_says(slurm, kind, tmp_path):
    launch, program = {"serving": (single(), "vllm"), "training": (training(1), "torchrun")}[kind]
    value = context(launch, supervision=Supervision(requeues=1))
    fails = {program: "#!/bin/bash\necho started >> starts\nexit 9\n"}
    job = submitted(slurm, tmp_path, bundle(value, tmp_path, **fails))
    restarted(slurm, job, 1)
    shown = ended(slurm, job)
    assert (shown["JobState"], shown["Restarts"]) == ("FAILED", "1")
    # right after a requeue srun itself may fail (1), before anything starts
    starts = (tmp_path / "starts").read_text().split()
    assert (shown["ExitCode"], len(starts)) in (("9:0", 2), ("1:0", 1))


def test_what_another_start_would_meet_again_does_not_go_back(slurm, tmp_path):
    """A wrong option (2): no start with the same command helps."""
    path = bundle(context(single()), tmp_path, vllm="#!/bin/bash\nexit 2\n")
    shown = ended(slurm, submitted(slurm, tmp_path, path))
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")


@pytest.mark.parametrize("kind", ["serving", "training"])
def test_a_cancelled_job_stays_away(slurm, kind, tmp_path):
    launch, program = {"serving": (single(), "vllm"), "training": (training(1), "torchrun")}[kind]
    runs = {program: "#!/bin/bash\ntouch began\nexec sleep 60\n"}
    job = submitted(slurm, tmp_path, bundle(context(launch), tmp_path, **runs))
    until = time.monotonic() + WAIT_S
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until, slurm.show(job)
        time.sleep(0.2)
    slurm.run("scancel", job)
    shown = ended(slurm, job)
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")


@pytest.mark.parametrize("servers", [1, 2])
def test_servers_are_told_to_stop_before_the_time_limit(slurm, servers, tmp_path):
    finishes = "trap 'sleep 1; touch told-$$; exit 0' TERM\ntouch began-$$"
    waits = f"#!/bin/bash\n{finishes}\nwhile true; do sleep 0.2; done\n"
    path = bundle(context(replicas(servers, 4)), tmp_path, vllm=waits)
    job = submitted(slurm, tmp_path, path)
    until = time.monotonic() + WAIT_S
    while len([*tmp_path.glob("began-*")]) < servers:
        assert time.monotonic() < until, slurm.show(job)
        time.sleep(0.2)
    slurm.run("scancel", "--signal=TERM", "--batch", job)  # what Slurm sends before the limit
    assert ended(slurm, job)["JobState"] == "COMPLETED"
    assert len([*tmp_path.glob("told-*")]) == servers


def test_the_trainer_writes_a_checkpoint_before_the_time_limit(slurm, tmp_path):
    """The stand-in ends when it is asked to by the file that the trainer looks for."""
    waits = "#!/bin/bash\ntouch began\nuntil [ -e run/stop ]; do sleep 0.2; done\ntouch saved\n"
    path = bundle(context(training(1), engine="torch"), tmp_path, torchrun=waits)
    job = submitted(slurm, tmp_path, path)
    until = time.monotonic() + WAIT_S
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until, slurm.show(job)
        time.sleep(0.2)
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    restarted(slurm, job, 1)
    slurm.run("scancel", job)
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "run" / "stop").exists()
    assert (tmp_path / "run" / f"slurm-{job}.planned").read_text() == "1\n"


def test_whole_nodes_are_asked_for_where_all_devices_are_used():
    whole, part = (
        target_files(context(single(n), devices_per_node=n))["targets/slurm/job.sbatch"]
        for n in (8, 2)
    )
    assert "--exclusive\n" in whole
    assert "--mem=0\n" in whole
    assert "--exclusive" not in part
    assert "--cpus-per-gpu=8\n" in part
