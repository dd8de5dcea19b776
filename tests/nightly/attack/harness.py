"""What attacks share: what was tried, what failed, and their command line."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What was tried, by names, and failures with what repeats each."""

    tried: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The counts, for people."""
        return ", ".join(f"{name}: {count}" for name, count in self.tried.items())


def command(doc: str | None, attack: Callable[..., Tally], count: int, **more: Any) -> int:
    """Attack as the command line says, whose options have these defaults; gives its exit code."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, usual in {"count": count, "seed": 1, **more}.items():
        parser.add_argument(
            f"--{name}", type=type(usual) if usual is not None else str, default=usual
        )
    asked, began = parser.parse_args(), time.monotonic()
    tally = attack(**vars(asked))
    print(tally.text())
    print(f"seed {asked.seed}, {time.monotonic() - began:.0f} s, {len(tally.failures)} failures")
    for failure in tally.failures:
        print(f"FAILED {failure}")
    return 1 if tally.failures else 0
