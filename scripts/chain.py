"""The whole way on this machine, nothing faked: plan a training run, train, serve what came out,
ask it.

    python scripts/chain.py [FOLDER]

A small model with random weights is planned for two processes of this machine's CPU, built into a
bundle, measured for a few steps, stopped with a checkpoint and trained to its end from there. The
folder it leaves is planned for serving, built, started, asked, and stopped. About three minutes on
two cores.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from demo import NEEDED, RECIPE, run_recipe

from recipe_core.base.documents import to_yaml

QUESTION = "A guest asks: What is in the soup?"
STEPS, SEQUENCES, LENGTH = 200, 16, 128
MODEL = {
    "_name_or_path": "kitchen-1m",
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def training_request() -> dict[str, Any]:
    workload = {
        "kind": "training",
        "sequence_length": LENGTH,
        "global_batch": SEQUENCES,
        "tokens": STEPS * SEQUENCES * LENGTH,
    }
    split = {
        "engine": "torch",
        "tp": 1,
        "pp": 1,
        "dp": 2,
        "zero_stage": 2,
        "micro_batch": SEQUENCES // 2,
        "recompute": "none",
    }
    return {
        "model": MODEL,
        "hardware": {"device": "cpu", "per_node": 2},
        "workload": workload,
        "candidate": split,
    }


def serving_request(model: Path) -> dict[str, Any]:
    workload = {"mode": "closed", "input_tokens": 16, "output_tokens": 32, "concurrency": 1}
    return {"model": str(model), "hardware": {"device": "cpu", "per_node": 1}, "workload": workload}


def find_chain_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def build_chain_bundle(folder: Path, name: str, request: dict[str, Any]) -> Path:
    """A bundle of the request, by the command line."""
    path, bundle = folder / f"{name}.yaml", folder / name
    path.write_text(to_yaml(request))
    run_recipe("estimate" if "candidate" in request else "plan", str(path))
    run_recipe("build", str(path), "-o", str(bundle))
    return bundle


def train_chain_model(folder: Path) -> Path:
    """The model folder that a training bundle leaves."""
    bundle, port = build_chain_bundle(folder, "train", training_request()), find_chain_port()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores
    try:
        run_recipe("bench", str(bundle), "--steps", "10", "--port", port)
        run_recipe("up", str(bundle), "--foreground", "--port", port)
    finally:
        subprocess.call([*RECIPE, "down", str(bundle)])
    return bundle / "run" / "model"


def ask_chain_server(folder: Path, model: Path) -> str:
    """Say what a serving bundle of the model says."""
    bundle, port = (
        build_chain_bundle(folder, "serve", serving_request(model.resolve())),
        find_chain_port(),
    )
    try:
        run_recipe("up", str(bundle), "--port", port)
        launch = json.loads((bundle / "launch.json").read_text())
        body = {
            "model": str(model.resolve()),
            "prompt": QUESTION,
            "max_tokens": 32,
            "temperature": 0.0,
        }
        url = f"http://127.0.0.1:{port}{launch['api']['path']}"
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        print(f"\n$ curl {url} -d {json.dumps(body)!r}", flush=True)
        with urllib.request.urlopen(request, timeout=60) as reply:
            text: str = json.load(reply)["choices"][0]["text"]
            return text
    finally:
        subprocess.call([*RECIPE, "down", str(bundle)])


def main(folder: Path) -> None:
    missing = [
        name
        for name in NEEDED
        if subprocess.call([sys.executable, "-c", f"import {name}"], stderr=subprocess.DEVNULL)
    ]
    if missing:
        sys.exit(f"The chain needs {', '.join(missing)}: make chain, or pip install -e '.[torch]'")
    folder.mkdir(parents=True, exist_ok=True)
    text = ask_chain_server(folder, train_chain_model(folder))
    print(f"\n{QUESTION}\nIt says: {text.strip()!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "chain"))
