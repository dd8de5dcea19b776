"""A result held against its base over a text's windows: perplexity, texts, speed and memory."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CompressError, RetainedError
from .job import Job, Verify
from .models import Array, Logits, put_in_place
from .runners import Runner, load_runner, runtime_of


@dataclass(frozen=True)
class Window:
    """Tokens that are read, of which the last ``scored`` are predicted."""

    tokens: list[int]
    scored: int


def text_tokens(tokenizer: Any, path: Path) -> list[int]:
    """A text as token ids, with the special tokens that the tokenizer adds.

    A ``.jsonl`` file has a text in the field ``text`` of every line.

    Raises:
        CompressError: when the file cannot be read, or is too short to predict anything.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
            text = "\n\n".join(row["text"] for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompressError(f"cannot read the text {path}: {error}.") from None
    tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
    if len(tokens) < 2:
        raise CompressError(f"{path} has {len(tokens)} tokens.", hint="Name a longer text.")
    return tokens


def sliding(tokens: Sequence[int], width: int) -> Iterator[Window]:
    """Windows of ``width`` that move by half: each token but the first is predicted once.

    Those of the first window are predicted from all before them, every other one from at least
    half a window.
    """
    stride, end = max(1, width // 2), min(width, len(tokens))
    yield Window(list(tokens[:end]), end - 1)
    while end < len(tokens):
        last = min(end + stride, len(tokens))
        yield Window(list(tokens[max(0, last - width) : last]), last - end)
        end = last


def samples(tokens: Sequence[int], count: int, width: int) -> list[list[int]]:
    """``count`` windows of ``width`` tokens at even distances; they overlap in a short text."""
    width = min(width, len(tokens))
    room = len(tokens) - width
    count = min(count, room + 1)
    starts = [room * i // max(1, count - 1) for i in range(count)]
    return [list(tokens[start : start + width]) for start in starts]


@dataclass(frozen=True)
class Figures:
    """The figures of one model, measured by one runtime.

    bytes: of the files with its weights. resident_bytes: by how much the process grew until all was
    measured (pages that a runtime maps count once read; memory that it had before is used again).
    decode_tokens_per_s: one sequence, one token after the other; None without prompts.
    """

    runtime: str
    version: str
    perplexity: float
    bytes: int
    resident_bytes: int
    load_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None


@dataclass(frozen=True)
class Result:
    """A result beside its base.

    tokens: of the text that was read. perplexity_retained: base / result; 1: nothing lost.
    same_top: share of the text's tokens at which both find the same token likeliest. agreement:
    share of equal tokens in greedy continuations of the same prompts; first_divergence: tokens
    before the first that differs, in the mean over prompts.
    """

    base: Figures
    result: Figures
    tokens: int
    perplexity_retained: float
    same_top: float
    agreement: float | None
    first_divergence: float | None

    def to_json(self, job: Job) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "technique": job.technique,
            "tool": job.tool,
            "method": job.method,
            "format": job.written,
            "tokens": self.tokens,
            "retained": {
                "perplexity": self.perplexity_retained,
                "agreement": self.agreement,
                "same_top": self.same_top,
            },
            "first_divergence": self.first_divergence,
            "perplexity": self.result.perplexity,
            "base_perplexity": self.base.perplexity,
            "bytes": self.result.bytes,
            "base_bytes": self.base.bytes,
            "tokens_per_s": self.result.decode_tokens_per_s,
            "base_tokens_per_s": self.base.decode_tokens_per_s,
            "base": asdict(self.base),
            "result": asdict(self.result),
            "notes": [],
        }


def write_result(result: Result, job: Job, path: Path) -> None:
    """Write the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    text = json.dumps(result.to_json(job), indent=2, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    put_in_place(temporary, path)


_STORED = {
    "torch": ("*.safetensors", "*.bin"),
    "ONNX Runtime": ("*.onnx", "*.onnx.data", "*.onnx_data"),
    "OpenVINO": ("openvino_model.*",),
    "llama.cpp": ("*.gguf",),
}


@dataclass(frozen=True)
class Observed:
    """The output of a model: figures, the tokens it would have chosen, and those it chose.

    top: of every predicted token of the text. greedy: continuations of every prompt.
    """

    figures: Figures
    top: Array
    greedy: list[list[int]]


def stored_bytes(folder: Path) -> int:
    """Bytes of the files that hold the weights."""
    patterns = _STORED[runtime_of(folder)]
    return sum(path.stat().st_size for pattern in patterns for path in folder.glob(pattern))


def observe(folder: Path, tokens: list[int], verify: Verify) -> Observed:
    """Load a folder, and let it read the tokens and continue the prompts.

    Raises:
        CompressError: where it cannot be loaded.
    """
    resident, started = runner_resident_bytes(), time.perf_counter()
    runner = load_runner(folder)
    load_s = time.perf_counter() - started
    loss, top = _predict_tokens(runner, tokens, verify.window)
    prompts = samples(tokens, verify.prompts, verify.prompt_tokens)
    greedy, decode = [], []
    for prompt in prompts:
        answer, seconds = _continued(runner, prompt, verify.new_tokens)
        greedy.append(answer)
        decode.append(seconds)
    figures = Figures(
        runtime=runner.name,
        version=runner.version,
        perplexity=float(np.exp(loss)),
        bytes=stored_bytes(folder),
        resident_bytes=max(0, runner_resident_bytes() - resident),
        load_s=load_s,
        prefill_tokens_per_s=_prefill_rate(runner, tokens[: verify.window], verify.runs),
        decode_tokens_per_s=1 / statistics.median(decode) if decode else None,
    )
    return Observed(figures, top, greedy)


def _predict_tokens(runner: Runner, tokens: list[int], window: int) -> tuple[float, Array]:
    """Mean loss of a token in nats, and the likeliest token at each place."""
    losses, tops = [], []
    for part in sliding(tokens, window):
        logits = runner.logits(part.tokens)[-part.scored - 1 : -1].astype(np.float64)
        targets = np.array(part.tokens[-part.scored :])
        largest = logits.max(1)
        logsum = np.log(np.exp(logits - largest[:, None]).sum(1)) + largest
        losses.append(logsum - logits[np.arange(len(targets)), targets])
        tops.append(logits.argmax(1))
    return float(np.concatenate(losses).mean()), np.concatenate(tops)


def _continued(runner: Runner, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The likeliest ``count`` tokens one after the other, and the median seconds of one."""
    logits: Logits = runner.start(prompt)
    answer, seconds = [int(logits.argmax())], []
    while len(answer) < count:
        started = time.perf_counter()
        answer.append(int(runner.step(answer[-1]).argmax()))
        seconds.append(time.perf_counter() - started)
    return answer, statistics.median(seconds) if seconds else float("nan")


def _prefill_rate(runner: Runner, tokens: list[int], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        runner.start(tokens)
        seconds.append(time.perf_counter() - started)
    return len(tokens) / statistics.median(seconds)


def runner_resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    import resource

    return int(status.split()[1]) * resource.getpagesize()


def compare_with_base(base: Observed, result: Observed, tokens: int) -> Result:
    """Return what is retained of the base."""
    equal = [
        [base_token == token for base_token, token in zip(*pair, strict=True)]
        for pair in zip(base.greedy, result.greedy, strict=True)
    ]
    flat = [same for row in equal for same in row]
    firsts = [row.index(False) if False in row else len(row) for row in equal]
    return Result(
        base=base.figures,
        result=result.figures,
        tokens=tokens,
        perplexity_retained=base.figures.perplexity / result.figures.perplexity,
        same_top=float(np.mean(base.top == result.top)),
        agreement=float(np.mean(flat)) if flat else None,
        first_divergence=statistics.mean(firsts) if firsts else None,
    )


def check_retained(result: Result, minimum: float | None) -> None:
    """Hold a result to the job's limit.

    Raises:
        RetainedError: where less is retained.
    """
    if minimum is not None and result.perplexity_retained < minimum:
        raise RetainedError(
            f"{result.perplexity_retained:.4f} of the base's perplexity is retained, less than "
            f"verify.least_retained {minimum}: {result.base.perplexity:.4f} became "
            f"{result.result.perplexity:.4f}.",
            hint="Use more bits, a smaller group or less removed.",
        )
