"""Measure what `transformers serve` itself costs on this machine.

    python scripts/fit_embedded.py MODEL_DIR [--device NAME]

It prints the ``overheads`` of ``engines/serving/transformers.yaml``. MODEL_DIR is the demo's model,
for its tokenizer; NAME is a profile of ``hw_profiles/``, by default the CPU. Serves copies of the
model with random weights and few or many layers, benches each at several concurrencies, and fits
time per step, per sequence and per layer to what the roofline leaves of the measured time per
token, and time per request to what is left of the time to first token at one request. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from recipe_core.bundle.write import write_bundle
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.hardware.cluster import device_profile
from recipe_core.payload.launcher.main import main as launcher
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.recipe import make_recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

LAYERS = (2, 8, 16)
LOADS = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 32), "rocm": (1, 4, 16, 32)}
FREE = {
    "step_s": 0.0,
    "sequence_s": 0.0,
    "layer_s": 0.0,
    "launch_s": 0.0,
    "request_s": 0.0,
    "input_token_s": 0.0,
}


def variant(source: Path, target: Path, layers: int) -> None:
    """A copy of the model with random weights and so many layers."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(source)
    config.num_hidden_layers = layers
    config.layer_types = None
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(target)  # type: ignore[no-untyped-call]


def embedded_request(model: Path, name: str, load: int) -> PlanRequest:
    workload = {"mode": "closed", "input_tokens": 128, "output_tokens": 64, "concurrency": load}
    candidate = {"engine": "transformers"}
    return PlanRequest.parse(
        {
            "model": str(model),
            "hardware": {"device": name, "per_node": 1},
            "workload": workload,
            "candidate": candidate,
        }
    )


def call(bundle: Path, *words: str) -> None:
    """One command of the bundle's launcher, silent unless it fails."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = launcher(list(words), root=bundle)
    if code:
        sys.exit(errors.getvalue())


@contextmanager
def served_bundle(bundle: Path) -> Iterator[None]:
    """The bundle's server, up and then down."""
    call(bundle, "up", "--port", "8765")
    try:
        yield
    finally:
        call(bundle, "down")


def measure_bundle(bundle: Path, load: int) -> dict[str, Any]:
    """Mean figures of a real bench at this load."""
    call(bundle, "bench", "--concurrency", str(load), "--requests", str(max(12, 4 * load)))
    figures: dict[str, Any] = json.loads((bundle / "run" / "measurement.json").read_text())[
        "metrics"
    ]
    return figures


def without_engine(request: PlanRequest) -> tuple[float, float, float]:
    """Time to first token, time per token and decoding sequences without any engine overhead."""
    exact = stated_serving_case(resolve_problem(request), CandidateRequest(tp=1, pp=1, dp=1))
    assert exact is not None
    setting, columns = exact
    runtime = setting.cluster.device.runtime
    free = setting.engine.overhead(runtime).model_copy(update=FREE)
    engine = setting.engine.model_copy(update={"overheads": {runtime: free}})
    result = estimate_serving(replace(setting, engine=engine), columns)
    return (
        float(result.serving.ttft_s[0]),
        float(result.serving.tpot_s[0]),
        float(result.serving.resident[0]),
    )


def main(source: Path, name: str) -> None:
    rows, times, first = [], [], []
    loads = LOADS[device_profile(name).runtime]
    with tempfile.TemporaryDirectory() as folder:
        for layers in LAYERS:
            model = Path(folder) / f"layers-{layers}"
            variant(source, model, layers)
            bundle = write_bundle(
                make_recipe(embedded_request(model, name, max(loads))),
                Path(folder) / f"bundle-{layers}",
            )
            with served_bundle(bundle):
                for load in loads:
                    figures = measure_bundle(bundle, load)
                    ttft, tpot, resident = without_engine(embedded_request(model, name, load))
                    rows.append([1.0, resident, layers])
                    times.append(figures["tpot_s"] - tpot)
                    if load == 1:
                        first.append((figures["ttft_s"] - ttft, layers))
                    print(
                        f"{layers} layers, {load} at once: "
                        f"TPOT {figures['tpot_s'] * 1e3:.2f} ms, roofline {tpot * 1e3:.2f} ms; "
                        f"TTFT {figures['ttft_s'] * 1e3:.1f} ms, roofline {ttft * 1e3:.1f} ms",
                        flush=True,
                    )
    step, sequence, layer = np.linalg.lstsq(np.array(rows), np.array(times), rcond=None)[0]
    request_s = float(
        np.median(
            [
                remaining_s - 1.5 * (step + sequence + layer * layers)
                for remaining_s, layers in first
            ]
        )
    )
    print(
        f"step_s: {step:.2e}, sequence_s: {sequence:.2e}, layer_s: {layer:.2e}, "
        f"request_s: {max(request_s, 0):.2e}"
    )
    fitted = np.array(rows) @ [step, sequence, layer]
    print(
        f"largest error of a fitted time per token: {np.max(np.abs(fitted - times)) * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Measure what transformers serve itself costs on this machine."
    )
    parser.add_argument("model", type=Path, help="folder of a small model with a tokenizer")
    parser.add_argument(
        "--device", default="cpu", help="profile of hw_profiles/ to measure (default cpu)"
    )
    args = parser.parse_args()
    main(args.model, args.device)
