"""Texts to token files, written once for files and tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .data import write_tokens
from .errors import TrainError

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


def token_file(paths: tuple[Path, ...], tokenizer: Any, folder: Path) -> Path:
    """Write all texts as tokens, each followed by an end-of-text token, and return the file.

    It is written once for these files and this tokenizer. Nodes that share the folder may write
    side by side: each moves what it wrote into place.
    """
    digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
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
    name = f"tokens-{digest.hexdigest()[:16]}"
    return write_tokens(folder, name, _encode_documents(paths, tokenizer), len(tokenizer))


def _encode_documents(paths: tuple[Path, ...], tokenizer: Any) -> Iterator[list[int]]:
    for path in paths:
        for document in documents(path):
            yield from _encoded(document, tokenizer)


def _encoded(document: Iterator[str], tokenizer: Any) -> Iterator[list[int]]:
    for piece in document:
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        yield [tokenizer.eos_token_id]


_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def get_tokenizer(
    source: str,
    model: str | None,
    data: tuple[Path, ...],
    vocabulary: int,
    context: int,
) -> Any:
    """The tokenizer of the folder or id ``model``, or one trained on the texts.

    The latter for ``source`` data, with at most ``vocabulary`` tokens.

    Raises:
        TrainError: when there is none, or it has more tokens than the model.
    """
    if source == "data":
        return _train_tokenizer(data, vocabulary, context)
    if model is None:
        raise TrainError(
            "the tokenizer is the model's, but --model is missing.",
            hint="Set a folder or an id: --model FOLDER.",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise TrainError(
            f"{model} has no tokenizer: {str(error).splitlines()[0]}",
            hint="Set a folder with one: --model FOLDER.",
        ) from None
    if len(tokenizer) > vocabulary:
        raise TrainError(
            f"the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary}.",
            hint="Use the model's own tokenizer.",
        )
    return tokenizer


def _train_tokenizer(
    data: tuple[Path, ...], vocabulary: int, context: int
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: it represents any text, and equal texts give equal tokenizers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = [*_SPECIALS.values()]
    if vocabulary < len(alphabet) + len(specials):
        raise TrainError(
            f"a vocabulary of {vocabulary} is too small for bytes.",
            hint=f"Use at least {len(alphabet) + len(specials)}.",
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    texts = (piece for path in data for document in documents(path) for piece in document)
    raw.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **_SPECIALS, model_max_length=context)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = _CHAT
    return tokenizer
