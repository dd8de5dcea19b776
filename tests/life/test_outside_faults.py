"""Bundles of requests that people made elsewhere: each once could not start, or did not go on.

The requests and the right values are those of public threads, which every test names.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_files
from recipe_core.compression.required import detail_row_estimate
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe import make_recipe
from recipe_core.recipe.build import Additions
from recipe_core.recipe.place import read_parameters
from recipe_core.request.schema import PlanRequest
from tests.fixtures.rows import table

REQUESTS = table("life_requests", "requests")
GIB = 1 << 30


@cache
def built(name, **place):
    """Recipe and files of a request, in an image of one's own."""
    parameters = {"image": "registry.example/trainer:1.0"} | place
    additions = Additions(parameters=read_parameters(parameters))
    recipe = make_recipe(PlanRequest.parse(REQUESTS[name]), additions)
    return recipe, {path: data.decode() for path, data in bundle_files(recipe).items()}


def estimated(name):
    plan, row = plan_candidate(PlanRequest.parse(REQUESTS[name]))
    return detail_row_estimate(plan, row).to_json()


def pod(files, path="targets/jobset/jobset.yaml"):
    job = yaml.safe_load(files[path])["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]


def test_the_first_checkpoint_comes_before_the_time_limit():
    """NVIDIA-NeMo/Megatron-Bridge#4765: slices shorter than the interval make no progress for ever.

    Llama 3.1 70B under DeepSpeed on 8 H200: it came after 214,000 of 172,800 seconds.
    """
    recipe, files = built("deepspeed-70b", time_limit_minutes=2880)
    run, step_s = recipe.estimate["run"], recipe.estimate["training"]["step_s"]
    steps = json.loads(files["train.json"])["checkpoints"]["every_steps"]
    assert run["restart_s"] + steps * step_s + run["checkpoint_s"] < 172_800
    job = files["targets/slurm/job.sbatch"]
    assert "#SBATCH --time=2880" in job
    assert "touch run/stop" in job  # its trainer looks for the file
    lead_s = int(re.search(r"--signal=B:USR1@(\d+)", job)[1])
    assert lead_s > step_s + run["checkpoint_s"]


def test_a_time_limit_that_nobody_states_is_the_partitions():
    _, files = built("deepspeed-70b")
    assert "--time" not in re.findall(r"^#SBATCH (.*)", files["targets/slurm/job.sbatch"], re.M)
    assert not re.search(r"^#SBATCH --time", files["targets/slurm/job.sbatch"], re.M)


def test_what_a_drained_node_loses_is_said_of_the_framework():
    """torchtitan, TRL, Axolotl and LLaMA-Factory write no checkpoint at SIGTERM."""
    said = {}
    for name in ("titan-8b", "trl-8b", "torch-8b"):
        _, files = built(name)
        lines = files["targets/failures.md"].splitlines()
        rows = [line for line in lines if "node is drained" in line]
        row = next(line for line in rows if "kubelet" in line)
        said[name] = row
    assert "lets the trainer write a checkpoint" not in said["titan-8b"]
    assert "lets the trainer write a checkpoint" not in said["trl-8b"]
    assert "lets the trainer write a checkpoint" in said["torch-8b"]


class Hub(http.server.BaseHTTPRequestHandler):
    """A stand-in for the hub, with a tokenizer and weights of any model."""

    files: ClassVar = {
        "config.json": b"{}",
        "tokenizer.json": b'{"made": "for a test"}',
        "model.safetensors": b"0" * 64,
    }

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, *, body):
        path = self.path.split("?")[0]
        name = path.rsplit("/", 1)[-1]
        if "/tree/" in path:
            rows = [
                {"type": "file", "path": each, "size": len(held), "oid": "2" * 40}
                for each, held in self.files.items()
            ]
            data = json.dumps(rows).encode()
        elif path.startswith("/api/models/"):
            told = {"id": "one/model", "sha": "1" * 40}
            told["siblings"] = [{"rfilename": each} for each in self.files]
            data = json.dumps(told).encode()
        else:
            data = self.files.get(name)
        if data is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def small_hub():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_torchtitan_reads_a_tokenizer_from_a_folder_that_the_bundle_fetches(tmp_path, small_hub):
    """`--hf-assets-path` is a folder: a name of the hub ended in FileNotFoundError."""
    _, files = built("titan-8b")
    for path, text in files.items():
        place = tmp_path / "bundle" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    process = json.loads(files["launch.json"])["processes"][0]
    stub = tmp_path / "bin" / "torchrun"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$TOLD"\n')
    stub.chmod(0o755)
    places = {"root": str(tmp_path / "bundle"), "run": str(tmp_path / "run")}
    places |= {"model": REQUESTS["titan-8b"]["model"], "head": "127.0.0.1", "port": "29500"}
    words = [
        re.sub(r"\$\{(\w+)\}", lambda m: places[m[1]], word).replace("python3", sys.executable)
        for word in process["argv"]
    ]
    env = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    env |= {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": small_hub, "HF_HUB_DISABLE_XET": "1"}
    env |= {"TOLD": str(tmp_path / "told"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text().splitlines()
    folder = told[told.index("--hf-assets-path") + 1]
    assert json.loads(Path(folder, "tokenizer.json").read_text()) == {"made": "for a test"}
    assert not Path(folder, "model.safetensors").exists()  # pre-training starts from none


@pytest.mark.parametrize("name", ["trl-8b", "axolotl-8b", "llama-factory-8b"])
def test_rows_are_laid_where_a_pod_may_write(name):
    """The bundle is a ConfigMap, mounted read-only; a TrainJob has no working folder."""
    _, files = built(name)
    container = pod(files)["containers"][0]
    words = container["command"]
    place = words[words.index("--lay") + 1]
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert any(place.startswith(f"{mount}/") for mount in writable)
    assert words[words.index("--folder") + 1] in writable  # where relative paths are looked up
    texts = [text for path, text in files.items() if re.fullmatch(r"[\w/]+\.(yaml|json)", path)]
    assert not [text for text in texts if "run/data/rows.jsonl" in text and "launch" not in text]


@pytest.mark.parametrize(
    ("name", "count", "pages"), [("efa-h100", "32", "5120Mi"), ("efa-a100", "4", "5120Mi")]
)
def test_pods_ask_for_the_interfaces_that_their_machine_has(name, count, pages):
    """aws-ia's blueprint for EFA (p5.48xlarge: 32); skypilot's example (p4d: 8 GPUs, 4 EFA)."""
    _, files = built(name)
    limits = pod(files)["containers"][0]["resources"]["limits"]
    assert limits["vpc.amazonaws.com/efa"] == count
    assert limits["hugepages-2Mi"] == pages


def test_skypilot_starts_what_was_estimated():
    """skypilot#5553, #5839, #10554: TCP between machines; and the price of spot, on demand."""
    recipe, files = built("sky-70b", bucket="s3://runs/titan")
    task = yaml.safe_load(files["targets/skypilot/task.yaml"])
    resources = task["resources"]
    assert (resources["network_tier"], resources["use_spot"]) == ("best", True)
    assert resources["disk_size"] * GIB > 2 * recipe.estimate["run"]["checkpoint_bytes"]
    (mount,) = task["file_mounts"].values()
    assert mount["source"] == "s3://runs/titan"
    assert task["envs"]["RECIPE_RUN"] in task["file_mounts"]
    assert "run=${RECIPE_RUN:-$root/run}" in files["targets/skypilot/node.sh"]


@pytest.mark.parametrize("name", ["titan-hybrid", "titan-hybrid-small"])
def test_torchtitan_cuts_heads_of_keys_and_values_evenly(name):
    """pytorch/torchtitan#4016: tensor_parallel_degree must divide n_kv_heads, in hybrids too."""
    with pytest.raises(NoAnswer, match="2 key/value heads are not divisible by TP 4"):
        built(name)
    assert any("No bundle is made" in note for note in estimated(name)["notes"])


def test_a_pod_asks_for_what_its_states_take_on_the_host():
    """788 GiB of states wait beside 8 H200; verl#1208 and OpenRLHF#1013 were killed."""
    recipe, files = built("deepspeed-70b")
    kept = 8 * recipe.estimate["memory"]["host_bytes"]
    assert kept > 700 * GIB
    asked = pod(files)["containers"][0]["resources"]["requests"]["memory"]
    assert int(asked.removesuffix("Gi")) * GIB > kept


def test_a_run_is_elastic_only_where_that_is_asked_for():
    """The README said that it waits for the repair, and torchrun was told `--nnodes 1:2`."""
    _, files = built("torch-two-nodes")
    words = pod(files)["containers"][0]["command"]
    assert words[words.index("--nnodes") + 1] == "2"


def test_a_node_that_cannot_hold_what_its_processes_load_is_not_started():
    """transformers 5.23 reads the model in every process: 405B in fp32 eight times over."""
    request = {
        "model": "meta-llama/Llama-3.1-405B",
        "hardware": {"device": "h200-sxm", "per_node": 8, "nodes": 16},
        "workload": REQUESTS["deepspeed-70b"]["workload"],
    }
    said = {}
    for engine in ("accelerate", "deepspeed"):
        split = {"engine": engine, "tp": 1, "pp": 1, "dp": 128, "zero_stage": 3}
        stated = request | {"candidate": split | {"micro_batch": 1, "recompute": "full"}}
        plan, row = plan_candidate(PlanRequest.parse(stated))
        assert plan.feasible[row]
        said[engine] = " ".join(detail_row_estimate(plan, row).to_json()["notes"])
    assert "of whole models at once" in said["accelerate"]
    assert "of whole models at once" not in said["deepspeed"]
