"""Texts, chats and preferences to token files, written once for files and tokenizer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .data import write_shards
from .errors import TrainError
from .examples import write_examples

# ChatML for a tokenizer without a template; answers end with the token at which servers stop.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ (eos_token or '') if m['role'] == 'assistant' else '<|im_end|>' }}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ANSWER = "assistant"

# Tokens that are learned, and -1 - token for those that are not.
Example = list[int]
Messages = list[dict[str, Any]]


class Reader:
    """Makes examples of the lines of files, with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.marked = bool(_MARKED.search(tokenizer.chat_template or ""))

    def examples(self, path: Path, data_format: str) -> Iterator[Example]:
        """The examples of a file: chats as they come, of preferences chosen and rejected in turn.

        Raises:
            TrainError: for a line that is none, with its number.
        """
        read = self.chat if data_format == "chat" else self.preference
        for place, record in records(path):
            try:
                yield from read(record)
            except (ValueError, KeyError, TypeError, TemplateError) as error:
                raise TrainError(
                    f"{place} is no {data_format} that can be trained on: {_reason(error)}.",
                    hint=_FORMS[data_format],
                ) from None

    def chat(self, record: Any) -> list[Example]:
        """A chat's examples: one, or one for each answer where later turns change earlier ones."""
        messages = _messages(record["messages"])
        if not any(message["role"] == _ANSWER for message in messages):
            raise ValueError(f"no message has the role {_ANSWER}")
        return [self._by_marks(messages)] if self.marked else self._by_prefixes(messages, 0)

    def preference(self, record: Any) -> list[Example]:
        """The chosen and the rejected answer of a prompt, which is chat or plain text."""
        answers = [record["chosen"], record["rejected"]]
        if all(isinstance(answer, str) for answer in answers):
            prompt, end = record.get("prompt", ""), self.tokenizer.eos_token or ""
            if not isinstance(prompt, str):
                raise TypeError("the prompt is no text, the answers are")
            return [self._encoded([(prompt, False), (answer + end, True)]) for answer in answers]
        chats = [_messages(answer) for answer in answers]
        prompt = _messages(record["prompt"]) if "prompt" in record else _shared_messages(*chats)
        if "prompt" not in record:
            chats = [chat[len(prompt) :] for chat in chats]
        return [self._answer([*prompt, *chat], len(prompt)) for chat in chats]

    def _answer(self, messages: Messages, first: int) -> Example:
        examples = self._by_prefixes(messages, first)
        if len(examples) != 1:
            raise ValueError(f"an answer has one turn of the role {_ANSWER}")
        return examples[0]

    def _by_marks(self, messages: Messages) -> Example:
        """As the template's own ``{% generation %}`` marks answers."""
        encoding = self.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        pairs = zip(encoding["input_ids"], encoding["assistant_masks"], strict=True)
        return [token if learned else -1 - token for token, learned in pairs]

    def _by_prefixes(self, messages: Messages, first: int) -> list[Example]:
        """By texts that grow with the turns: an answer is what follows where one is asked for.

        Answers before message ``first`` are read only.
        """
        dialogue, at = self._text(messages), 0
        pieces: list[tuple[str, bool]] = []
        alone: list[Example] = []
        grows = True
        for turn, message in enumerate(messages):
            if message["role"] != _ANSWER or turn < first:
                continue
            prefix, start = self._turn(messages, turn)
            alone.append(self._encoded([(prefix[:start], False), (prefix[start:], True)]))
            grows = grows and start >= at and dialogue.startswith(prefix)
            if grows:
                pieces += [(prefix[at:start], False), (prefix[start:], True)]
                at = len(prefix)
        return [self._encoded(pieces)] if grows and pieces else alone

    def _turn(self, messages: Messages, turn: int) -> tuple[str, int]:
        """The text up to the end of an answer, and where that begins."""
        before = self._text(messages[:turn])
        prompt = self._text(messages[:turn], ask=True)
        answered = self._text(messages[: turn + 1])
        start = _common_length(prompt, answered)
        if start < len(before):
            raise ValueError(f"the template writes what is before message {turn + 1} in two ways")
        return answered, start

    def _text(self, messages: Messages, *, ask: bool = False) -> str:
        if not messages and not ask:
            return ""
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=ask
        )
        return text

    def _encoded(self, pieces: list[tuple[str, bool]]) -> Example:
        """Tokens piece by piece: those of a prompt are then the ones that a server makes of it."""
        out: Example = []
        for text, learned in pieces:
            ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            out += ids if learned else [-1 - token for token in ids]
        return out


_FORMS = {
    "chat": 'A line is {"messages": [{"role": …, "content": …}, …]}.',
    "preference": 'A line is {"prompt": …, "chosen": …, "rejected": …}, each texts or messages.',
}


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON of each line, with the name of its place; empty lines are passed over.

    Raises:
        TrainError: when the file cannot be read, or a line is no JSON.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path} line {number}", json.loads(line)
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(f"cannot read {path}: {error}.", hint="Use UTF-8 .jsonl.") from None
    except ValueError as error:
        raise TrainError(f"{path} has a line that is not JSON: {error}.") from None


def read_chat_texts(path: Path) -> Iterator[str]:
    for _, record in records(path):
        yield from _strings(record)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _messages(value: Any) -> Messages:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{str(value)[:40]!r} is no list of messages")
    for number, message in enumerate(value, 1):
        has_role = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not has_role or not isinstance(message.get("content"), str):
            raise ValueError(f"message {number} has no role and content that are texts")
    return value


def _shared_messages(preferred: Messages, rejected: Messages) -> Messages:
    return preferred[: _common_length(preferred, rejected)]


def _common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How far two sequences are equal."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")


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
