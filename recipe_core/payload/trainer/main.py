"""``torchrun … train.py --config train.json``: one process of a training run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from .rollbacks import end_with_code
from .settings import add_run_options, data_paths, load_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process.

    Exit codes: 0 trained, or stopped as asked (``STOPPED_EXIT``); 2 something a person has to
    change; 3 rolled back: the next start goes on from before the loss broke.
    """
    options = _trainer_parser().parse_args(argv)
    root = options.config.resolve().parent
    run = (options.out or root / "run").resolve()
    # Otherwise tokenizers warns about forking after threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def train() -> bool:
        settings = load_settings(options.config)
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        from .loop import Paths, train_on_rank

        data = data_paths(options.data, settings.data, root)
        return train_on_rank(settings, Paths(root, run, options.model, data), options.resume)

    return end_with_code(run, train)


def _trainer_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train.py", description="Train what train.json describes; started by torchrun."
    )
    add_run_options(parser)
    parser.add_argument(
        "--resume",
        type=_resume,
        default="auto",
        metavar="auto|never|STEP",
        help="checkpoint to resume from",
    )
    return parser


def _resume(text: str) -> str:
    if text not in ("auto", "never") and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, never or a step")
    return text
