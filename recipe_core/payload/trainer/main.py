"""``torchrun … train.py --config train.json``: one process of a training run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .errors import RolledBackError, TrainError
from .rollbacks import tell_end
from .settings import STOPPED_EXIT, add_run_options, data_paths, load_settings


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
    try:
        settings = load_settings(options.config)
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        from .loop import Paths, train_on_rank

        data = data_paths(options.data, settings.data, root)
        finished = train_on_rank(settings, Paths(root, run, options.model, data), options.resume)
    except TrainError as error:
        if isinstance(error, RolledBackError) and os.environ.get("RANK") != "0":
            return error.exit_code  # the first rank tells
        print(f"train: {error}", file=sys.stderr, flush=True)
        tell_end(run, error)
        return error.exit_code
    return 0 if finished else int(os.environ.get(STOPPED_EXIT, "0"))


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
