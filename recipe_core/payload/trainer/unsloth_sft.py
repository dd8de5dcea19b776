"""Adapters with Unsloth on one node, as ``unsloth.json`` says: one process a device."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .start_tool import find_newest_checkpoint


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and write the adapters and the tokenizer beside the checkpoints."""
    options = _unsloth_parser().parse_args(argv)
    settings: dict[str, Any] = json.loads(options.config.read_text(encoding="utf-8"))
    root = options.config.resolve().parent
    # First of all: it replaces functions of what is imported after it.
    import unsloth  # type: ignore[import-not-found]
    from datasets import load_dataset  # type: ignore[import-not-found]
    from trl import SFTConfig, SFTTrainer  # type: ignore[import-not-found]

    language_model = unsloth.FastLanguageModel
    model, tokenizer = language_model.from_pretrained(model_name=options.model, **settings["load"])
    model = language_model.get_peft_model(model, **settings["adapters"])
    rows = [str(path) for path in options.data] or [str(root / settings["data"])]
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=load_dataset("json", data_files=rows, split="train"),
        args=SFTConfig(output_dir=str(options.out / "checkpoints"), **settings["arguments"]),
    )
    checkpoint = find_newest_checkpoint(options.out / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(options.out / "adapter"))
    return 0


def _unsloth_parser() -> argparse.ArgumentParser:
    data_path = os.environ.get("RECIPE_DATA")
    parser = argparse.ArgumentParser(
        prog="train_unsloth.py", description="Train adapters as unsloth.json says, with Unsloth."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", required=True, metavar="FOLDER|ID")
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        default=[Path(data_path)] if data_path else [],
        metavar="FILE",
        help="conversations (.jsonl) instead of the bundle's",
    )
    return parser
