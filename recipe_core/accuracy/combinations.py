"""Pairs of techniques and their effect together: ``combinations.yaml``."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.runners import Support, runner
from recipe_core.accuracy.technique import technique, techniques
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.hardware.profile import Device

FILE = DataFile(PACKAGE / "accuracy" / "combinations.yaml", "technique")

# void: the second adds nothing, or the pair does not run. multiply: shares of memory and accuracy
# multiply. exclusive: a model has one of them at a time. unknown: nothing is said of the pair.
Effect = Literal["void", "multiply", "exclusive", "unknown"]


@dataclass(frozen=True, slots=True)
class Combination:
    """The effect of two techniques together, and why, in a sentence or two."""

    effect: Effect
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return {"effect": self.effect, "sentence": self.sentence}


class _Both(DataRow):
    a: Text
    b: Text
    both: Text


class _Rule(DataRow):
    a: Text
    b: Text
    effect: Effect
    sentence: Text

    def fits(self, first: str, second: str) -> bool:
        return _matches_selector(first, self.a) and _matches_selector(second, self.b)


class _File(DataRow):
    schema_version: Literal[1]
    together: tuple[_Both, ...]
    rules: tuple[_Rule, ...]


@cache
def _combinations_file() -> _File:
    return FILE.read_as(_File)


def _matches_selector(name: str, selector: str) -> bool:
    return selector == technique(name).kind or fnmatch.fnmatch(name, selector)


def combination(
    a: str, b: str, engine: str, device: Device | str, version: str = ""
) -> Combination:
    """Return what two techniques do together on a runner (its release ``version``) and a device.

    A technique that the runner refuses makes every pair void. Where a technique is both (FP8 in a
    2:4 pattern), its own row decides.

    Raises:
        InputError: for an unknown technique, runner or device.
    """
    parts = [support_of(name, engine, device, version) for name in (a, b)]
    refused = next((part for part in parts if part.verdict == "refused"), None)
    if refused is not None:
        return Combination("void", _refusal_text(refused))
    both = _joint_technique(a, b)
    if both is not None:
        return _judge_joint_support(support_of(both, engine, device, version))
    rule = _combination_rule(a, b)
    if rule is None:
        return Combination("unknown", f"Nothing is known of {a} with {b}.")
    unknown = [part for part in parts if part.verdict == "unknown"]
    if rule.effect == "multiply" and unknown:
        runs = f"{runner(unknown[0].engine).title} runs {unknown[0].technique} on this hardware"
        sentence = f"{rule.sentence} Whether {runs} is not known."
        return Combination("unknown", sentence)
    return Combination(rule.effect, rule.sentence)


def _refusal_text(part: Support) -> str:
    quote = f': "{part.words}"' if part.words else ""
    return f"{runner(part.engine).title} refuses {part.technique} here{quote}."


def _joint_technique(a: str, b: str) -> str | None:
    """The technique that is both, by the file or as one whose parts they are."""
    for pair in _combinations_file().together:
        if {a, b} == {pair.a, pair.b}:
            return pair.both
    # one is a format of weights and the other of the cache, not mixed
    if (technique(a).kind == "kv cache") == (technique(b).kind == "kv cache"):
        return None
    parts = sorted((a, b))
    return next(
        (name for name, joint in techniques().items() if sorted(joint.parts) == parts), None
    )


def _judge_joint_support(joint: Support) -> Combination:
    title = technique(joint.technique).title
    if joint.verdict == "unknown":
        return Combination("unknown", f"{title}: {joint.note or 'nothing is said of it.'}")
    if joint.verdict in ("refused", "memory only"):
        sentence = f"No kernel of {runner(joint.engine).title} runs both here ({title})."
        return Combination("void", sentence)
    sentence = (
        f"{title} run together on {runner(joint.engine).title} ({joint.verdict}): "
        "what each saves holds, and losses of accuracy multiply."
    )
    return Combination("multiply", sentence)


def _combination_rule(a: str, b: str) -> _Rule | None:
    pairs = ((a, b), (b, a))
    return next(
        (rule for rule in _combinations_file().rules if any(rule.fits(*pair) for pair in pairs)),
        None,
    )
