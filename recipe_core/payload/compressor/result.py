"""``compression.json``: what a verification measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .disk import put_in_place
from .job import Job


@dataclass(frozen=True)
class Figures:
    """What one model was measured at, by one runtime.

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
    notes: tuple[str, ...] = field(default=())

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
            "notes": list(self.notes),
        }


def write_result(result: Result, job: Job, path: Path) -> None:
    """Write the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    text = json.dumps(result.to_json(job), indent=2, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    put_in_place(temporary, path)
