"""Texts, chats and preferences to token files, written once for files and tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .chats import Reader
from .errors import TrainError
from .examples import write_examples
from .shards import write_shards

# Characters that the tokenizer gets at once.
_PIECE = 1 << 20


def documents(path: Path) -> Iterator[Iterator[str]]:
    """Documents of a file, as pieces of text.

    A document is a line of ``.jsonl`` (its ``text``) or a whole text file.

    Raises:
        TrainError: when the file cannot be read, or a line has no text.
    """
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                for number, line in enumerate(file, 1):
                    yield iter([_parse_text_line(line, f"{path} line {number}")])
            else:
                yield _join_lines_to_pieces(file)
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(
            f"cannot read {path}: {error}.", hint="Use UTF-8 text or .jsonl: --data FILE."
        ) from None


def _parse_text_line(line: str, place: str) -> str:
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError):
        raise TrainError(f"{place} is not a JSON object with a text.") from None


def _join_lines_to_pieces(lines: Iterable[str]) -> Iterator[str]:
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def token_file(
    paths: tuple[Path, ...], tokenizer: Any, folder: Path, data_format: str = "text"
) -> Path:
    """All data as tokens, written once for these files and this tokenizer.

    Texts become `shards`, each followed by an end-of-text token; chats and preferences `examples`.

    Nodes that share the folder may write side by side: each moves what it wrote into place.
    """
    name = f"tokens-{_token_source_digest(paths, tokenizer, data_format)[:16]}"
    if data_format == "text":
        return write_shards(folder / name, _encode_documents(paths, tokenizer), len(tokenizer))
    reader = Reader(tokenizer)
    examples = (example for path in paths for example in reader.examples(path, data_format))
    return write_examples(folder / f"{name}.bin", examples)


def _token_source_digest(paths: tuple[Path, ...], tokenizer: Any, data_format: str) -> str:
    """The name of what tokens are made from: files, vocabulary and, for chats, the template."""
    digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    if data_format != "text":
        digest.update(f"{data_format} {tokenizer.chat_template}".encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        except OSError as error:
            raise TrainError(
                f"cannot read {path}: {error.strerror}.",
                hint="Set the path of the text: --data FILE.",
            ) from None
    return digest.hexdigest()


def _encode_documents(paths: tuple[Path, ...], tokenizer: Any) -> Iterator[list[int]]:
    for path in paths:
        for document in documents(path):
            yield from _encoded(document, tokenizer)


def _encoded(document: Iterator[str], tokenizer: Any) -> Iterator[list[int]]:
    for piece in document:
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        yield [tokenizer.eos_token_id]
