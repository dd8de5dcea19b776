"""Slurm scripts in a real Slurm: two emulated nodes, programs that record their arguments."""

import pytest

from recipe_core.request.supervision import Supervision
from tests.fixtures import slurm as slurms
from tests.fixtures.targets import (
    AMD,
    EXAMPLES,
    ROCM,
    after,
    context,
    pools,
    replicas,
    single,
    spread,
    training,
    with_parameters,
)

pytestmark = pytest.mark.skipif(
    bool(slurms.missing()), reason=f"Slurm is not installed: {', '.join(slurms.missing())}"
)
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
def slurm(tmp_path_factory):
    partitions = {"debug": ("h100", 2), "amd": ("mi300x", 1)}
    with slurms.cluster(tmp_path_factory.mktemp("slurm"), partitions) as running:
        yield running


def test_slurm_takes_every_example_on_its_devices_only(slurm, tmp_path):
    partitions = {"nvidia": ("debug", "amd"), "amd": ("amd", "debug")}
    for name, value in EXAMPLES.items():
        fits, other = partitions[value.vendor]
        assert slurm.refusal(value, tmp_path / name, partition=fits) == "", name
        if name in ("amd-one-node", "two-nodes", "training-two-nodes"):
            assert slurm.refusal(value, tmp_path / f"{name}-other", partition=other), name
    assert slurm.refusal(context(spread(3)), tmp_path / "three-nodes")
    value = EXAMPLES["amd-one-node"]  # on a cluster whose devices have another type, or none
    for kind in ("h100", "any"):
        assert slurm.refusal(value, tmp_path / kind, partition="debug", gpu_type=kind) == ""
    assert slurm.refusal(value, tmp_path / "other", gpu_type="any", constraint="no&such")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["serving", "training"])
@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_a_job_looks_at_its_devices_before_it_starts(slurm, kind, name, tmp_path):
    launch = {"serving": spread(2), "training": training(2)}[kind]
    programs = {KINDS[kind][1]: BEGIN, "nvidia_smi": SMI % name}
    job = slurm.submit(context(launch), tmp_path, **programs)
    shown, planned = job.end(), "H100" in name
    assert (tmp_path / "began").exists() == planned
    assert (f"n1 has {name}; the recipe is for h100-sxm" in job.log) != planned
    if not planned:
        assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")


@pytest.mark.nightly
def test_devices_of_amd_are_looked_at_and_other_ones_taken_on_purpose(slurm, tmp_path):
    option, smi = "--export=ALL,RECIPE_ANY_DEVICE=1", SMI % "NVIDIA L4"
    job = slurm.submit(context(), tmp_path / "other", option, vllm=TELL, nvidia_smi=smi)
    job.complete()
    assert job.commands
    value = with_parameters(context(single(), AMD, image=ROCM), partition="amd")
    for name, code in (("AMD Instinct MI300X OAM", "0:0"), ("AMD Instinct MI210", "2:0")):
        job = slurm.submit(value, tmp_path / code[0], vllm=TELL, rocm_smi=ROCM_SMI % name)
        assert job.end()["ExitCode"] == code
        assert "not checked" not in job.log


def test_two_nodes_start_one_engine(slurm, tmp_path):
    job = slurm.submit(context(spread(2)), tmp_path, vllm=TELL)
    assert "will answer on port 8000 of 127.0.0.1, to that node alone" in job.complete()
    for node, words in enumerate(job.commands):
        assert (words[0], after(words, "--node-rank")) == (str(node), str(node))
        assert after(words, "--master-addr") == "127.0.0.1"
    assert job.commands[0][2] == "cuda=0,1,2,3,4,5,6,7"


@pytest.mark.nightly
def test_servers_of_one_node_take_devices_from_those_given(slurm, tmp_path):
    """One of them ends, the node has failed: the job does not hang with half of its servers."""
    waits = TELL + AWAIT.format(count=4)
    job = slurm.submit(context(replicas(4, 2)), tmp_path / "nvidia", vllm=waits)
    job.complete()
    seen = sorted((after(words, "--port"), words[2]) for words in job.commands)
    assert seen == [(str(8000 + n), f"cuda={2 * n},{2 * n + 1}") for n in range(4)]
    value = with_parameters(context(replicas(4, 2), AMD, image=ROCM), partition="amd")
    job = slurm.submit(value, tmp_path / "amd", vllm=waits)
    job.complete()
    seen = sorted(words[2:4] for words in job.commands)  # not filtered twice
    assert seen == [["cuda=", f"hip={n},{n + 1}"] for n in (0, 2, 4, 6)]
    # on a shared node
    value = context(single(2), AMD, image=ROCM, devices_per_node=2)
    value = with_parameters(value, partition="amd")
    job = slurm.submit(value, tmp_path / "shared", "--mem-per-gpu=1G", vllm=TELL)
    job.complete()
    (words,) = job.commands
    assert words[2:4] == ["cuda=", "hip="]  # ROCR_VISIBLE_DEVICES, which Slurm sets, says it all


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_pools_start_beside_their_router(slurm, nodes, tmp_path):
    value = context(pools(nodes), devices_per_node=8 // nodes)
    waits = TELL + AWAIT.format(count=3)
    job = slurm.submit(value, tmp_path, vllm=waits, vllm_router=waits)
    job.complete()
    commands = {(words[1], words[0]) for words in job.commands}
    assert commands == {("vllm", "0"), ("vllm-router", "0"), ("vllm", str(nodes - 1))}
    assert len(job.commands) == 3
    router = next(words for words in job.commands if words[1] == "vllm-router")
    assert after(router, "--prefill") == "http://127.0.0.1:8001"
    assert after(router, "--decode") == "http://127.0.0.1:8002"


@pytest.mark.nightly
def test_two_nodes_of_a_training_meet(slurm, tmp_path):
    slurm.submit(context(training(2)), tmp_path, torchrun=MEET).complete()
    assert [(tmp_path / f"met-{node}").read_text() for node in (0, 1)] == ["here", "sent"]


@pytest.mark.nightly
def test_a_training_that_runs_out_of_time_goes_back_to_the_queue(slurm, tmp_path):
    job = slurm.submit(context(training(1)), tmp_path, torchrun=BEGIN + "exec sleep 600\n")
    job.wait_for_file("began")
    job.signal("USR1")
    job.wait_for_restart()
    assert (job.show()["Restarts"], job.show()["JobState"] in slurms.RUNS) == ("1", True)
    job.cancel()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_goes_back_to_the_queue_as_often_as_the_recipe_says(slurm, kind, tmp_path):
    launch, program = KINDS[kind]
    value = context(launch, supervision=Supervision(requeues=1))
    fails = {program: "#!/bin/bash\necho started >> starts\nexit 9\n"}
    job = slurm.submit(value, tmp_path, **fails)
    job.wait_for_restart()
    shown = job.end()
    assert (shown["JobState"], shown["Restarts"]) == ("FAILED", "1")
    # right after a requeue srun itself may fail (1), before anything starts
    starts = (tmp_path / "starts").read_text().split()
    assert (shown["ExitCode"], len(starts)) in (("9:0", 2), ("1:0", 1))


@pytest.mark.nightly
def test_what_another_start_would_meet_again_does_not_go_back(slurm, tmp_path):
    """A wrong option (2): no start with the same command helps."""
    shown = slurm.submit(context(), tmp_path / "option", vllm="#!/bin/bash\nexit 2\n").end()
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0")
    job = slurm.submit(context(), tmp_path / "not-installed")
    assert job.end()["JobState"] != "COMPLETED"
    assert "vllm is not installed on this node" in job.log


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_job_stays_away(slurm, kind, tmp_path):
    launch, program = KINDS[kind]
    job = slurm.submit(context(launch), tmp_path, **{program: BEGIN + "exec sleep 600\n"})
    job.wait_for_file("began")
    job.cancel()
    shown = job.end()
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")


@pytest.mark.nightly
@pytest.mark.parametrize("servers", [1, 2])
def test_servers_are_told_to_stop_before_the_time_limit(slurm, servers, tmp_path):
    finishes = "trap 'touch told-$$; exit 0' TERM\ntouch began-$$"
    waits = f"#!/bin/bash\n{finishes}\nwhile true; do sleep 0.2; done\n"
    job = slurm.submit(context(replicas(servers, 4)), tmp_path, vllm=waits)
    job.wait_for_file("began-*", servers)
    job.signal("TERM")
    assert job.end()["JobState"] == "COMPLETED"
    assert len([*tmp_path.glob("told-*")]) == servers


@pytest.mark.nightly
def test_the_trainer_writes_a_checkpoint_before_the_time_limit(slurm, tmp_path):
    """The stand-in ends when it is asked to by the file that the trainer looks for."""
    waits = BEGIN + "until [ -e run/stop ]; do sleep 0.2; done\ntouch saved\n"
    job = slurm.submit(context(training(1), engine="torch"), tmp_path, torchrun=waits)
    job.wait_for_file("began")
    job.signal("USR1")
    job.wait_for_restart()
    job.cancel()
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "run" / "stop").exists()
    assert (tmp_path / "run" / f"slurm-{job.number}.planned").read_text() == "1\n"
