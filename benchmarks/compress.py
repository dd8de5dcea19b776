"""Compress a small real model in every way that this machine can, and hold it to predictions.

    python -m benchmarks.compress [MODEL] [--only int4 int2] [--tokens 1024]

Without MODEL the demo's is trained first. Prints a table: bytes and perplexity retained, measured
beside predicted, and tokens a second of one sequence. Needs the extras torch and compress.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.accuracy.accuracy import estimate_retained
from recipe_core.accuracy.technique import techniques
from recipe_core.base.errors import RecipeError
from recipe_core.models.tensors import BYTES_PER_VALUE
from recipe_core.payload.compressor.compress import write_compressed_model
from recipe_core.payload.compressor.errors import CompressError
from recipe_core.payload.compressor.job import Verify, read_job
from recipe_core.payload.compressor.models import load_decoder, load_tokenizer, matrices
from recipe_core.payload.compressor.verify import Observed, compare_with_base, observe, text_tokens

SCRIPTS = Path(__file__).parent.parent / "scripts"
TEXT = SCRIPTS / "demo_corpus.txt"
WORK = (
    "int8_w8a8", "int8_weight_only", "fp8_w8a8", "int4_weight_only", "int3_weight_only",
    "int2_weight_only",
)  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Weights of the layers' matrices, of embeddings and head, and the largest common group."""

    inner: int
    rest: int
    group: int


def weights_of(folder: Path) -> Weights:
    model = load_decoder(folder)
    inner = [matrix for _, matrix in matrices(model, ("lm_head",))]
    count = sum(matrix.weight.numel() for matrix in inner)
    group = next(g for g in (128, 64, 32, 16) if all(not m.in_features % g for m in inner))
    return Weights(count, model.num_parameters() - count, group)


def predicted_bytes(name: str, weights: Weights) -> float:
    """By nominal bits, with a 16-bit scale a group; embeddings and head stay in 16 bits."""
    technique = techniques()[name]
    scales = 2 / weights.group if technique.group == "128" else 0
    inner = weights.inner * (technique.weight_bits / 8 + scales)
    return inner + weights.rest * BYTES_PER_VALUE["bf16"]


def row(name: str, source: Path, root: Path, base: Observed, tokens: list[int], verify: Verify,
        weights: Weights) -> str:  # fmt: skip
    """Make it, measure it, and put both beside what was expected."""
    own_group = techniques()[name].group == "128"
    job = read_job(
        {
            "schema_version": 1,
            "source": str(source),
            "output": str(root / "out"),
            "technique": name,
            "options": {"group": weights.group} if own_group else {},
        }
    )
    started = time.monotonic()
    write_compressed_model(job)
    seconds = time.monotonic() - started
    result = compare_with_base(base, observe(job.output_folder, tokens, verify), len(tokens))
    figures = result.result
    expected = predicted_bytes(name, weights)
    return "| " + " | ".join(
        (
            name,
            figures.runtime,
            f"{figures.bytes / 1e6:.3f}",
            f"{expected / 1e6:.3f} ({figures.bytes / expected - 1:+.1%})",
            f"{result.perplexity_retained:.4f}",
            band(name),
            f"{result.same_top:.3f}",
            f"{result.agreement:.2f}",
            f"{figures.prefill_tokens_per_s:,.0f}",
            f"{figures.decode_tokens_per_s:,.0f}",
            f"{figures.resident_bytes / 1e6:.0f}",
            f"{seconds:.0f}",
        )
    ) + " |"  # fmt: skip


def band(name: str) -> str:
    """The expected share of perplexity, of published models of billions of parameters."""
    try:
        expected = estimate_retained("demo", name, benchmark="perplexity")
    except RecipeError as error:
        return str(error)
    if not expected.is_known:
        return "unknown"
    return f"{expected.value:.3f} ({expected.low:.3f} to {expected.high:.3f})"


def trained(root: Path) -> Path:
    sys.path.insert(0, str(SCRIPTS))
    import demo_model

    demo_model.ensure(root / "model")
    return root / "model"


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="compress-") as folder:
        root = Path(folder)
        source: Path = options.model or trained(root)
        verify = Verify(tokens=options.tokens, window=128, runs=5)
        tokens = text_tokens(load_tokenizer(source), TEXT)[: options.tokens]
        weights, base = weights_of(source), observe(source, tokens, verify)
        print(base_line(base, weights, len(tokens)))
        print(HEAD)
        methods: list[str] = [
            work for work in WORK if not options.only or any(word in work for word in options.only)
        ]
        for work in methods:
            try:
                print(row(work, source, root, base, tokens, verify, weights), flush=True)
            except CompressError as error:
                print(f"| {work} | {error} |")
            shutil.rmtree(root / "out", ignore_errors=True)


HEAD = (
    "| technique | runtime | MB | predicted MB | perplexity retained | expected (80 % band) | "
    "same token | greedy | prefill tok/s | decode tok/s | grown MB | made in s |\n"
    + "|---" * 12
    + "|"
)


def base_line(base: Observed, weights: Weights, tokens: int) -> str:
    figures: Any = base.figures
    return (
        f"Base: {weights.inner + weights.rest:,} parameters, {figures.bytes / 1e6:.3f} MB, "
        f"perplexity {figures.perplexity:.4f} over {tokens} tokens, {figures.runtime} "
        f"{figures.version}: prefill {figures.prefill_tokens_per_s:,.0f}, decode "
        f"{figures.decode_tokens_per_s:,.0f} tokens/s; groups of {weights.group}.\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="folder of a Llama-like model")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="only work whose name holds one")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens that are predicted")
    main(parser.parse_args())
