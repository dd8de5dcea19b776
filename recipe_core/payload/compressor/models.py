"""Base checkpoints: loading, saving for good, and where their matrices are."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .errors import CompressError

Array = np.ndarray[Any, Any]
Logits = np.ndarray[Any, np.dtype[np.float32]]


def put_in_place(part: Path, target: Path) -> None:
    """Give a finished file or folder its name; the disk has all of it before, and the name after.

    Raises:
        OSError: when the disk fails, or another folder has the name.
    """
    for path in (part, *part.rglob("*")) if part.is_dir() else (part,):
        sync_to_disk(path)
    part.replace(target)
    sync_to_disk(target.parent)


def sync_to_disk(path: Path) -> None:
    """Have the disk keep what is in a file, or the names in a folder, where that can be.

    Raises:
        OSError: when the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # of folders some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def load_decoder(folder: Path, *, dtype: str = "auto") -> Any:
    """The decoder of a folder, to look at and not to train.

    Raises:
        CompressError: when there is none, or transformers cannot read it.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as words

    if not (folder / "config.json").is_file():
        raise CompressError(f"{folder} holds no config.json.", hint="Name the folder of a model.")
    words.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (ImportError, OSError, ValueError) as error:
        raise CompressError(f"{folder} cannot be loaded: {error}") from None
    model.requires_grad_(False)
    model.train(False)
    return model


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        CompressError: when it has none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CompressError(f"{folder} has no tokenizer that can be read: {error}") from None


TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)


def copy_tokenizer(source: Path, folder: Path) -> None:
    for pattern in TOKENIZER_FILES:
        for path in source.glob(pattern):
            shutil.copy2(path, folder / path.name)


def replaced(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside ``target`` and put it in its place, or leave all as it was."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.mkdir(parents=True)
    try:
        write(part)
        if target.exists():
            shutil.rmtree(target)
        put_in_place(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def matrices(module: nn.Module, ignore: Sequence[str] = ()) -> Iterator[tuple[str, nn.Linear]]:
    """Linear layers inside a module, but those whose names end in one of ``ignore``."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and not name.endswith(tuple(ignore)):
            yield name, layer


def pick_torch_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
