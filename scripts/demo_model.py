"""Build the demo's model: a small, real Llama with its own tokenizer, trained on
``demo_corpus.txt`` until its loss is what ``Training`` states, however long a machine takes.

    python scripts/demo_model.py OUT_DIR [--loss NATS]

It is small enough for two CPU cores and real enough to prove the path: configuration, weights on
disk, a tokenizer, a chat template, and completions that read like the corpus. Needs torch,
transformers and tokenizers; nothing is downloaded. A complete OUT_DIR made by the same script and
corpus is reused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

CORPUS = Path(__file__).with_name("demo_corpus.txt")
RECORD = "demo_model.json"
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    RECORD,
)
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
# The corpus has a paragraph of questions in exactly this form, so that a chat gets an answer and
# not a continuation of the question.
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}The cook says: {{ m['content'] }} "
    "{% elif m['role'] == 'user' %}A guest asks: {{ m['content'] }} "
    "{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}The cook says:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model: about 1 M parameters, which two slow cores train within a minute."""

    hidden: int = 128
    intermediate: int = 352
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    context: int = 2048


@dataclass(frozen=True, slots=True)
class Training:
    """The limits of training: the ``loss`` (nats a token) that ends it, and ``max_steps``.

    A loss of 0.12 is a model that finishes the corpus's sentences; at 1 it stammers.
    """

    loss: float = 0.12
    steps: int = 250
    max_steps: int = 400
    look_every: int = 5
    batch: int = 8
    length: int = 128
    matrix_rate: float = 1.5e-3
    other_rate: float = 6e-3
    warmup: int = 6
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Record:
    """The model that was built: from what, and how well it learnt."""

    digest: str
    parameters: int
    vocabulary: int
    steps: int
    seconds: float
    loss_before: float
    loss_after: float


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="demo_model.py", description="Build the demo's small real model."
    )
    parser.add_argument("out", type=Path, help="folder to write; an up-to-date one is reused")
    parser.add_argument(
        "--loss",
        type=float,
        default=Training().loss,
        help="nats per token at which training ends; 100 trains nothing (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    try:
        record, reused = ensure(args.out, Training(loss=args.loss))
    except ImportError as error:
        print(
            f"demo_model: {error.name} is not installed; pip install 'recipe-builder[torch]'.",
            file=sys.stderr,
        )
        return 1
    except (OSError, ValueError) as error:
        print(f"demo_model: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {'up to date' if reused else 'built'}, {summary(record)}")
    return 0


def ensure(out: Path, training: Training) -> tuple[Record, bool]:
    """The model in ``out``, built if missing, outdated or less trained; True if it was reused."""
    digest = source_digest()
    record = existing(out)
    if record is not None and record.digest == digest and record.loss_after <= training.loss:
        return record, True
    if out.exists() and record is None and any(out.iterdir()):
        raise ValueError(f"{out} holds something that is not a demo model; choose an empty folder.")
    return build_demo_model(out, digest, training), False


def source_digest() -> str:
    """Digest of this script and the corpus: either changing means another model."""
    return hashlib.sha256(Path(__file__).read_bytes() + b"\0" + CORPUS.read_bytes()).hexdigest()


def existing(out: Path) -> Record | None:
    """The record of a complete model in ``out``."""
    if not all((out / name).is_file() for name in FILES):
        return None
    try:
        return Record(**json.loads((out / RECORD).read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None


def summary(record: Record) -> str:
    return (
        f"{record.parameters / 1e6:.1f} M parameters, {record.vocabulary} tokens; "
        f"trained {record.steps} steps in {record.seconds:.1f} s, "
        f"loss {record.loss_before:.2f} -> {record.loss_after:.2f}"
    )


def build_demo_model(out: Path, digest: str, training: Training) -> Record:
    """Train and save beside ``out``, then move into place: an interrupted run leaves nothing."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    text = CORPUS.read_text(encoding="utf-8").strip()
    tokenizer = train_tokenizer(text)
    model = make_model(Shape(), len(tokenizer), tokenizer)
    steps, seconds, before, after = train_demo_model(model, encode(tokenizer, text), training)
    record = Record(
        digest,
        model.num_parameters(),
        len(tokenizer),
        steps,
        round(seconds, 2),
        round(before, 4),
        round(after, 4),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        staged = Path(folder) / "model"
        model.to(torch.bfloat16)  # type: ignore[arg-type]
        model.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        (staged / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        staged.replace(out)
    return record


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the corpus: any input works, a frequent word is one token.

    A text starts with a space like any other word, so that a paragraph that follows another reads
    as one does.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    raw.train_from_iterator([text], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **SPECIALS, model_max_length=2048)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The corpus as token ids, with an end-of-text token after each paragraph to end answers."""
    end = tokenizer.eos_token_id
    return [
        token
        for paragraph in text.split("\n\n")
        for token in (*tokenizer(paragraph)["input_ids"], end)
    ]


def make_model(shape: Shape, tokens: int, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=(tokens + 63) // 64 * 64,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def train_demo_model(
    model: LlamaForCausalLM, tokens: list[int], training: Training
) -> tuple[int, float, float, float]:
    """Steps done, seconds taken, and the loss over the corpus before and after.

    Raises:
        ValueError: when the loss is not reached.
    """
    import torch

    data = torch.tensor(tokens)
    before = corpus_loss(model, data, training.length)
    optimizer = make_optimizer(model, training)
    rates = [group["lr"] for group in optimizer.param_groups]
    generator = torch.Generator().manual_seed(training.seed)
    started, done, loss = time.monotonic(), 0, before
    while loss > training.loss:
        if done >= training.max_steps:
            raise ValueError(
                f"the loss is {loss:.2f} after {done} steps, and should be {training.loss}."
            )
        model.train()
        for _ in range(training.look_every):
            share = schedule(done, training)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            take_training_step(model, optimizer, windows(data, training, generator))
            done += 1
        loss = corpus_loss(model, data, training.length)
        if done % 20 == 0:
            print(
                f"  training: step {done}, loss {loss:.2f} (until {training.loss}), "
                f"{time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    return done, time.monotonic() - started, before, loss


def make_optimizer(model: LlamaForCausalLM, training: Training) -> torch.optim.Optimizer:
    """AdamW; matrices inside layers learn at a rate of their own."""
    import torch

    inner = [
        p
        for name, p in model.named_parameters()
        if p.ndim == 2 and "embed" not in name and "lm_head" not in name
    ]
    inner_ids = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in inner_ids]
    groups = [
        {"params": inner, "lr": training.matrix_rate},
        {"params": rest, "lr": training.other_rate},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def schedule(done: int, training: Training) -> float:
    """Linear warm-up, then linear decay over the steps to a last rate that stays."""
    progress = min(done / training.steps, 1.0)
    return min(1.0, (done + 1) / training.warmup, max(0.02, 1.5 * (1.0 - progress)))


def windows(data: torch.Tensor, training: Training, generator: torch.Generator) -> torch.Tensor:
    import torch

    starts = torch.randint(0, len(data) - training.length, (training.batch,), generator=generator)
    return torch.stack([data[start : start + training.length] for start in starts.tolist()])


def take_training_step(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> None:
    """One step, in float32: products this small gain nothing from fewer bits."""
    import torch

    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def corpus_loss(model: LlamaForCausalLM, data: torch.Tensor, length: int) -> float:
    """Mean loss per token over the whole corpus, in nats."""
    import torch

    model.eval()  # type: ignore[no-untyped-call]
    sequences = data[: len(data) // length * length].reshape(-1, length)
    with torch.inference_mode():
        return float(model(input_ids=sequences, labels=sequences).loss)


if __name__ == "__main__":
    raise SystemExit(main())
