"""Words of engines and devices on techniques, as parts of the advice."""

from __future__ import annotations

from pydantic import BaseModel

from recipe_core.accuracy.runners import Verdict
from recipe_core.base.documented import DESCRIBED


class AdvicePart(BaseModel):
    """A part of the answer, with its fields described."""

    model_config = DESCRIBED


class SupportAnswer(AdvicePart):
    """The row of the knowledge base."""

    technique: str
    """By name."""

    engine: str
    """By name."""

    hardware: str
    """A family of devices."""

    verdict: Verdict
    """Whether it runs, and by which means."""

    variant: str
    """The engine's own word for it; empty where it is the technique's."""

    min_version: str
    """First release that it holds for; empty: from the oldest."""

    last_version: str
    """Last release; empty: to the newest."""

    words: str
    """What the engine itself says."""

    note: str
    """What a reader should know besides."""

    source: str
    """Title of the source."""

    url: str
    """Its address."""

    date: str
    """When it was read or published."""

    inferred: bool
    """Whether a stated rule was applied to this hardware rather than read of it."""

    runs: bool
    """Whether the engine starts with it."""


class CellAnswer(AdvicePart):
    """A technique under an engine on a family of hardware."""

    verdict: Verdict
    """Whether it runs, and by which means."""

    words: str | None
    """The engine's own."""

    min_version: str | None
    """First release that it holds for."""

    source: str | None
    """Title of the source."""

    url: str | None
    """Its address."""

    date: str | None
    """When it was read or published."""


class MatrixAnswer(AdvicePart):
    """The runners of each technique, by technique and column."""

    engines_on: str
    """The device of ``by_engine``."""

    by_engine: dict[str, dict[str, CellAnswer]]
    """Engines, compilers and libraries on the device."""

    hardware_under: str
    """The engine of ``by_hardware``."""

    by_hardware: dict[str, dict[str, CellAnswer]]
    """Families of hardware under the engine."""
