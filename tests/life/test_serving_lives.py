"""A rendered server serves as its pod would let it: not root, and nothing but mounts written.

vLLM's CPU build will do (``scripts/vllm_cpu``, ``make test-vllm``); the request is made inside the
sandbox, which has no network but its own loopback.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from tests.fixtures.engines import demo_model
from tests.fixtures.needs import needs
from tests.fixtures.paths import ROOT
from tests.life import sandbox
from tests.life.sandbox import Image, live
from tests.life.targets import Place, of_container

MODEL_AT = "/data/tiny"
# Starts the command, waits until its health path answers, asks for tokens, and stops it.
ASK = """
import json, subprocess, sys, time, urllib.request
words, health, port = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
server = subprocess.Popen(words)
base = f"http://127.0.0.1:{port}"

def get(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return answer.read().decode()

try:
    while True:
        if server.poll() is not None:
            sys.exit(f"ended with {server.returncode}")
        try:
            get(health)
            break
        except OSError:
            time.sleep(1)
    (model,) = json.loads(get("/v1/models"))["data"]
    told = {"model": model["id"], "prompt": [5, 6, 7, 8, 9], "max_tokens": 4, "ignore_eos": True}
    print("ANSWER", get("/v1/completions", told), flush=True)
finally:
    server.terminate()
    server.wait(60)
"""


@pytest.mark.nightly
@pytest.mark.skipif(
    sandbox.refused() is not None, reason=f"NOT TESTED: living bundles, because {sandbox.refused()}"
)
@needs("a model", "torch")
def test_vllm_serves_with_a_read_only_root(tmp_path: Path) -> None:
    environment = ROOT / ".venv-vllm"
    if not (environment / "bin" / "vllm").is_file():
        pytest.skip("NOT TESTED: serving by vLLM, because there is none (make test-vllm)")
    tmp_path.chmod(0o755)
    model = demo_model(tmp_path / "model")
    for file in model.iterdir():
        file.chmod(0o644)  # others read it
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "weight_dtype": "fp32"}
    request = {
        "model": str(model),
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "max_context": 512},
        "candidate": split | {"memory_fraction": 0.15, "max_num_seqs": 8},
    }
    place = Parameters(image="registry.example/vllm:1", model=MODEL_AT)
    write_bundle(
        make_recipe(PlanRequest.parse(request), Additions(parameters=place)), tmp_path / "bundle"
    )
    folder = tmp_path / "bundle" / "targets" / "kubernetes"
    pod = yaml.safe_load((folder / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    where = Place(tmp_path / "bundle", model, MODEL_AT, tmp_path / "kept")
    (port,) = container["ports"]
    health = container["startupProbe"]["httpGet"]["path"]
    start = of_container(pod, container, "kubernetes", where)
    words = ["python3", "-c", ASK, json.dumps(start.words), health, str(port["containerPort"])]
    image = Image(folder=environment, env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    status = live(start.replaced(words), image, tmp_path / "life")
    said = (tmp_path / "life" / "log").read_text(errors="replace")
    assert status == 0, said[-6000:]
    (answer,) = [line for line in said.splitlines() if line.startswith("ANSWER ")]
    assert json.loads(answer.removeprefix("ANSWER "))["usage"]["completion_tokens"] == 4
