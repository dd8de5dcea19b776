"""The tokenizer: the model's own, or one trained on the data for a model without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .chats import CHATML, read_chat_texts
from .errors import TrainError
from .tokens import documents

_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_TURNS = ["<|im_start|>", "<|im_end|>"]
_CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def get_tokenizer(
    source: str,
    model: str | None,
    data: tuple[Path, ...],
    vocabulary: int,
    context: int,
    data_format: str = "text",
) -> Any:
    """The tokenizer of the folder or id ``model``, or one trained on the texts.

    The latter for ``source`` data, with at most ``vocabulary`` tokens. One that has no template for
    chats gets `CHATML` where chats are trained on.

    Raises:
        TrainError: when there is none, or it has more tokens than the model.
    """
    if source == "data":
        return _train_tokenizer(data, vocabulary, context, data_format)
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
    if data_format != "text" and not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    return tokenizer


def _train_tokenizer(
    data: tuple[Path, ...], vocabulary: int, context: int, data_format: str
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: it represents any text, and equal texts give equal tokenizers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = [*_SPECIALS.values(), *([] if data_format == "text" else _TURNS)]
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
    raw.train_from_iterator(_tokenizer_texts(data, data_format), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **_SPECIALS, model_max_length=context)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = _CHAT if data_format == "text" else CHATML
    return tokenizer


def _tokenizer_texts(data: tuple[Path, ...], data_format: str) -> Iterator[str]:
    for path in data:
        if data_format != "text":
            yield from read_chat_texts(path)
            continue
        for document in documents(path):
            yield from document
