"""``python -m compressor JOB.json``: compress, then hold the result against its base."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import CompressError
from .job import EMBEDDED, Job, load_job

RESULT = Path("run") / "compression.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job.

    Exit codes: 0 done; 2 something a person has to change; 3 made and measured, but less is
    retained than the job allows.
    """
    options = _compressor_parser().parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of progress say nothing in a log
    try:
        job = load_job(options.job)
        _compress_and_verify(job, options)
    except CompressError as error:
        print(f"compress: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _compress_and_verify(job: Job, options: argparse.Namespace) -> None:
    from .compress import write_compressed_model

    if job.tool == EMBEDDED and not options.verify_only:
        write_compressed_model(job)
    print(f"{job.technique}: {job.output_folder}", flush=True)
    if job.verify is None or options.no_verify:
        return
    from . import verify
    from .models import load_tokenizer
    from .verify import text_tokens

    tokenizer = load_tokenizer(job.source_folder)
    tokens = text_tokens(tokenizer, job.text(job.verify.text))[: job.verify.tokens]
    base = verify.observe(job.source_folder, tokens, job.verify)
    measured = verify.compare_with_base(
        base, verify.observe(job.output_folder, tokens, job.verify), len(tokens)
    )
    path = options.result or job.root / RESULT
    verify.write_result(measured, job, path)
    print(
        f"Perplexity {base.figures.perplexity:.4f} became {measured.result.perplexity:.4f} over "
        f"{len(tokens)} tokens ({100 * measured.perplexity_retained:.2f} % retained); "
        f"{base.figures.bytes:,} bytes became {measured.result.bytes:,}. See {path}.",
        flush=True,
    )
    verify.check_retained(measured, job.verify.least_retained)


def _compressor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compressor", description="Compress a model as a job says, and verify the result."
    )
    parser.add_argument("job", type=Path, metavar="JOB.json", help="what to do")
    parser.add_argument(
        "--verify-only", action="store_true", help="the output is there: measure it alone"
    )
    parser.add_argument("--no-verify", action="store_true", help="measure nothing")
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="where figures go (default: run/compression.json)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
