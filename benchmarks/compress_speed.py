"""Speed and bytes of compressed models beside what the advisor predicts for this machine.

    python -m benchmarks.compress_speed [--machine FILE] [--hidden 1024] [--layers 12]

Weights are random: only how long they take counts. The model is wide enough that products, and not
a program's own overhead, take the time. Predictions are those of ``recipe compress`` for a profile
of this machine (measured first without ``--machine``). Needs the extras torch and compress.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.compress import trained
from recipe_core.base.documents import parse_yaml
from recipe_core.doors import public
from recipe_core.payload.compressor.compress import write_compressed_model
from recipe_core.payload.compressor.job import Verify, read_job
from recipe_core.payload.compressor.models import load_tokenizer
from recipe_core.payload.compressor.verify import Observed, observe, text_tokens
from recipe_core.request.schema import PlanRequest

TEXT = Path(__file__).parent.parent / "scripts" / "demo_corpus.txt"
PROMPT, ANSWER = 128, 32
WORK = ("int8_weight_only", "int4_weight_only")
NONE, ENGINE = "none", "transformers"
HEAD = (
    "technique", "runtime", "MB", "predicted MB", "prefill tok/s", "predicted", "decode tok/s",
    "predicted",
)  # fmt: skip


def widened(source: Path, folder: Path, hidden: int, layers: int) -> Path:
    """A model of the source's kind and tokenizer with random weights, heads of 64."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source)
    heads = hidden // 64
    config.update(
        {
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 4,
            "head_dim": 64,
        }
    )
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(folder)
    return folder


def profile(root: Path) -> Path:
    machine = root / "machine.yaml"
    words = [sys.executable, "-m", "recipe_core", "profile", "--device", "cpu", "-o", str(machine)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    return machine


def predicted(model: Path, machine: Path) -> dict[str, dict[str, Any]]:
    """Figures of the split by technique, ``NONE`` for the base; none where it is not estimated."""
    request = PlanRequest.model_validate(
        {
            "model": str(model),
            "hardware": {"device": parse_yaml(machine.read_text()), "per_node": 1},
            "workload": {
                "mode": "static", "batch": 1, "input_tokens": PROMPT, "output_tokens": ANSWER,
            },
            "options": {"engines": [ENGINE]},
        }
    )  # fmt: skip
    answer = public.compress(request).to_json()
    by_technique = {row["technique"]: row["same_split"] for row in answer["formats"]}
    splits = {NONE: answer["base"]["same_split"], **by_technique}
    return {name: split["figures"] for name, split in splits.items() if split is not None}


def measured(
    source: Path, root: Path, technique: str, tokens: list[int], verify: Verify
) -> Observed:
    if technique == NONE:
        return observe(source, tokens, verify)
    output = root / "out"
    job = {
        "schema_version": 1,
        "source": str(source),
        "output": str(output),
        "technique": technique,
    }
    try:
        write_compressed_model(read_job(job))
        return observe(output, tokens, verify)
    finally:
        shutil.rmtree(output, ignore_errors=True)


def beside(measure: float, prediction: float | None) -> tuple[str, str]:
    """Both as words, the prediction with its error."""
    if not prediction:
        return f"{measure:,.4g}", "–"
    return f"{measure:,.4g}", f"{prediction:,.4g} ({prediction / measure - 1:+.0%})"


def value(figures: dict[str, Any], name: str) -> float | None:
    figure = figures.get(name)
    return None if figure is None else figure["value"]


def row(technique: str, observed: Observed, figures: dict[str, Any]) -> str:
    result = observed.figures
    ttft_s, tpot_s = value(figures, "ttft_s"), value(figures, "tpot_s")
    weights_bytes = value(figures, "weights_bytes")
    cells = (
        technique,
        result.runtime,
        *beside(result.bytes / 1e6, weights_bytes and weights_bytes / 1e6),
        *beside(result.prefill_tokens_per_s, ttft_s and PROMPT / ttft_s),
        *beside(result.decode_tokens_per_s or 0, tpot_s and 1 / tpot_s),
    )
    return f"| {' | '.join(cells)} |"


def main(options: argparse.Namespace) -> None:
    verify = Verify(tokens=PROMPT + 1, window=PROMPT, prompts=2, new_tokens=ANSWER, runs=5)
    with tempfile.TemporaryDirectory(prefix="compress-speed-") as temporary:
        root = Path(temporary)
        machine: Path = options.machine or profile(root)
        demo = trained(root)
        tokens = text_tokens(load_tokenizer(demo), TEXT)[: verify.tokens]
        print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        source = widened(demo, root / "wide", options.hidden, options.layers)
        figures = predicted(source, machine)
        for technique in (NONE, *WORK):
            observed = measured(source, root, technique, tokens, verify)
            print(row(technique, observed, figures.get(technique, {})), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machine", type=Path, help="profile of this machine, once measured")
    parser.add_argument("--hidden", type=int, default=1024, help="width, a multiple of 256")
    parser.add_argument("--layers", type=int, default=12)
    main(parser.parse_args())
