"""The loop on this machine: profile → plan → build → up → bench → calibrate → plan, three sizes.

    python benchmarks/loop.py [--rounds 1] [--profile FILE] [--model DIR] [--quick] [--json FILE]

Serves models of the demo's kind with random weights by the embedded engine and prints predicted and
measured times, before and after `recipe calibrate` learned from the first measurement. Exits with 1
if a time per token that was predicted from the profile alone is more than 25 % off, or if what was
learned made the predictions worse. Every size is profiled anew unless ``--profile`` is given: what
others do on the machine changes. Run it on a quiet machine.

It also prints what the engine's own time is of the profile's host loop (the numbers that REFERENCE
of recipe_core/hardware/microbench/host.py stands for).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
RECIPE = [sys.executable, "-m", "recipe_core"]
LIMIT = 0.25
CALIBRATION = "RECIPE_BUILDER_CALIBRATION"
SIZES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4},
    "small": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8},
    "medium": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12},
}
HEAD_WIDTH = 64
FIGURES = ("ttft_s", "tpot_s", "output_tokens_per_s")
WORKLOAD = {"mode": "closed", "input_tokens": 128, "output_tokens": 64, "concurrency": 4}


@dataclass(frozen=True)
class Run:
    """One size in one round: predicted from the profile, measured, predicted after learning."""

    size: str
    predicted: dict[str, float]
    measured: dict[str, float]
    inside: dict[str, bool]
    learned: dict[str, float] | None

    def off(self, figure: str, predicted: dict[str, float] | None = None) -> float:
        """Predicted over measured, less one."""
        return (predicted or self.predicted)[figure] / self.measured[figure] - 1


def recipe(*words: str, environment: dict[str, str]) -> str:
    """The output of a command; its error ends the benchmark."""
    done = subprocess.run([*RECIPE, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"recipe {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def has_calibrate(environment: dict[str, str]) -> bool:
    done = subprocess.run([*RECIPE, "calibrate", "--help"], capture_output=True, env=environment)
    return done.returncode == 0


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def make_model(source: Path, target: Path, size: str) -> None:
    """A model of a size with random weights, and the demo model's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    shape = SIZES[size]
    heads = max(2, shape["hidden_size"] // HEAD_WIDTH)
    config = LlamaConfig.from_pretrained(source)
    config.update({**shape, "num_attention_heads": heads, "num_key_value_heads": heads // 2})
    config.head_dim = shape["hidden_size"] // heads
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    silent = [
        token
        for token in range(config.vocab_size)
        if not (text := tokenizer.decode([token], skip_special_tokens=True)) or "\ufffd" in text
    ]
    with torch.no_grad():  # random weights would give some answers no text at all
        model.get_output_embeddings().weight[silent] = 0
    model.save_pretrained(target)


def measure_size(size: str, source: Path, folder: Path, profile: Path | None, quick: bool) -> Run:
    """One size through the whole loop."""
    environment = {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": str(ROOT),
        CALIBRATION: str(folder / "calibration"),
    }
    machine = profile or folder / "machine.yaml"
    if profile is None:
        words = ("profile", "--device", "cpu", "-o", str(machine), *(("--quick",) if quick else ()))
        print(recipe(*words, environment=environment), end="", flush=True)
    model, request, bundle = folder / "model", folder / "request.json", folder / "bundle"
    make_model(source, model, size)
    hardware = {"device": str(machine), "per_node": 1}
    values = {"model": str(model), "hardware": hardware, "workload": WORKLOAD}
    request.write_text(json.dumps(values))
    recipe("build", str(request), "-o", str(bundle), environment=environment)
    expected = json.loads((bundle / "expected.json").read_text())
    try:
        recipe("up", str(bundle), "--port", free_port(), environment=environment)
        recipe("bench", str(bundle), environment=environment)
    finally:
        subprocess.run([*RECIPE, "down", str(bundle)], env=environment, capture_output=True)
    measurement = json.loads((bundle / "run" / "measurement.json").read_text())
    measured = {name: measurement["metrics"][name] for name in FIGURES}
    bands = measurement["bands"]
    inside = {name: bands[name][0] <= measured[name] <= bands[name][1] for name in FIGURES}
    learned = None
    if has_calibrate(environment):
        recipe("calibrate", str(bundle), environment=environment)
        again = folder / "again"
        recipe("build", str(request), "-o", str(again), environment=environment)
        learned = predicted_of(json.loads((again / "expected.json").read_text()))
    implied(machine, model, measured)
    return Run(size, predicted_of(expected), measured, inside, learned)


def predicted_of(expected: dict[str, Any]) -> dict[str, float]:
    serving = expected["serving"]
    return {name: float(serving[name]) for name in FIGURES}


def implied(machine: Path, model: Path, measured: dict[str, float]) -> None:
    """Print by how much the profile's numbers of the host would have to differ to be right."""
    from dataclasses import replace

    from recipe_core.estimates.serving.estimates import estimate_serving
    from recipe_core.hardware.request import with_profiles
    from recipe_core.plans.problem import resolve_problem
    from recipe_core.plans.serving_candidates import stated_serving_case
    from recipe_core.request.candidate import CandidateRequest
    from recipe_core.request.schema import PlanRequest

    hardware = {"device": str(machine), "per_node": 1}
    candidate = {"engine": "transformers"}
    values = {"model": str(model), "hardware": hardware, "workload": WORKLOAD}
    request = PlanRequest.parse(with_profiles({**values, "candidate": candidate}))
    exact = stated_serving_case(resolve_problem(request), CandidateRequest(tp=1, pp=1, dp=1))
    assert exact is not None
    setting, cases = exact
    device = setting.cluster.device
    assert device.host is not None

    def times(host: dict[str, float]) -> tuple[float, float]:
        changed = device.model_copy(update={"host": device.host.model_copy(update=host)})
        serving = estimate_serving(
            replace(setting, cluster=replace(setting.cluster, device=changed)), cases
        )
        return float(serving.serving.ttft_s[0]), float(serving.serving.tpot_s[0])

    none = times({"layers": 0.0, "sequences": 0.0, "requests": 0.0})
    steps = times({"requests": 0.0})
    complete = times({})
    engine_s = max(complete[1] - none[1], 1e-9)
    request_s = max(complete[0] - steps[0], 1e-9)
    print(
        f"  implied: time of steps x {(measured['tpot_s'] - none[1]) / engine_s:.2f}, "
        f"of a request x {(measured['ttft_s'] - steps[0]) / request_s:.2f} "
        f"(without the host TTFT {none[0] * 1e3:.1f} ms, TPOT {none[1] * 1e3:.2f} ms)",
        flush=True,
    )


def shown(run: Run) -> str:
    cells = []
    for name in FIGURES:
        unit, scale = ("/s", 1.0) if "per_s" in name else (" ms", 1e3)
        cells.append(
            f"{name.removesuffix('_s')} predicted {run.predicted[name] * scale:.4g}{unit}, "
            f"measured {run.measured[name] * scale:.4g}{unit} ({run.off(name):+.0%}, "
            f"{'in' if run.inside[name] else 'out of'} band)"
        )
        if run.learned:
            cells[-1] += f", after calibrate {run.off(name, run.learned):+.0%}"
    return f"{run.size}: " + "; ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="a profile of this machine, instead of a new")
    parser.add_argument("--model", type=Path, help="the demo's model; default: made anew")
    parser.add_argument("--quick", action="store_true", help="profile in 20 s instead of 180")
    parser.add_argument("--json", type=Path, help="write all runs there")
    parser.add_argument("--size", action="append", choices=sorted(SIZES), help="only these sizes")
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="loop-") as name:
        source = arguments.model
        if source is None:
            source = Path(name) / "source"
            words = [sys.executable, str(ROOT / "scripts" / "demo_model.py"), str(source)]
            subprocess.run(words, check=True)
        for place in range(arguments.rounds):
            for size in arguments.size or SIZES:
                folder = Path(name) / f"{size}-{place}"
                folder.mkdir()
                runs.append(measure_size(size, source, folder, arguments.profile, arguments.quick))
                print(shown(runs[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(run) for run in runs], indent=1) + "\n")
    far = [run for run in runs if abs(run.off("tpot_s")) > LIMIT]
    worse = [
        run
        for run in runs
        if run.learned and abs(run.off("tpot_s", run.learned)) > abs(run.off("tpot_s"))
    ]
    print(f"{len(runs) - len(far)} of {len(runs)} times per token within {LIMIT:.0%}")
    return 1 if far or worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
