"""The answer of ``recipe compress REQUEST``: techniques applied to the base, and its schema.

SI units, in the names. A figure that would be guessed is null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.accuracy.runners import Verdict
from recipe_core.accuracy.technique import Kind
from recipe_core.base.errors import InputError
from recipe_core.compression.advisor.support import AdvicePart, MatrixAnswer, SupportAnswer

# Figures with the column of the plan, whose metric has title and unit.
FIGURES: dict[str, str] = {
    "weights_bytes": "weights_bytes",
    "cache_bytes": "kv_needed_bytes",
    "total_bytes": "total_bytes",
    "cache_tokens": "kv_cache_tokens",
    "requests_held": "max_concurrency",
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "request_latency_s": "request_latency_s",
    "output_tokens_per_s": "output_tokens_per_s",
    "output_tokens_per_s_per_gpu": "output_tokens_per_s_per_gpu",
    "usd_per_million_output_tokens": "usd_per_million_output_tokens",
    "joules_per_token": "joules_per_token",
    "gpus": "gpus",
    "load": "load",
}
# estimated: figures on its own split at least. memory only: no kernel, so no times. no split: it
# runs nowhere on this hardware. already: the base is it. void: nothing for it to work on, or
# nothing to gain. unknown: no source says whether it runs. refused: the engine's own words.
State = Literal["estimated", "memory only", "no split", "already", "void", "unknown", "refused"]
Ratios = dict[str, float]
Kept = Annotated[float, Field(ge=0, le=2)]


class EngineName(AdvicePart):
    """The engine that runs the formats."""

    name: str
    """Its name."""

    version: str
    """The release that recipes install."""


class FigureAnswer(AdvicePart):
    """A figure of a layout."""

    value: float
    """The value, SI."""

    ratio: float | None
    """Over that of the base; null where the base has none."""

    low: float | None = None
    """Lower end of the band that holds 80 % of measured values; null where it is exact."""

    high: float | None = None
    """Upper end of the band."""


class SplitAnswer(AdvicePart):
    """A layout and what it does."""

    split: str
    """Its degrees in words."""

    candidate: dict[str, Any]
    """Its degrees, formats and limits, as ``candidate`` of a request takes them."""

    state: str
    """``holds``, ``queues``, ``uncertain``, or ``cannot run``."""

    reasons: list[str]
    """Why it cannot run."""

    figures: dict[str, FigureAnswer | None] = Field(json_schema_extra={"required": list(FIGURES)})
    """By name; null where a figure is not known."""

    why_null: str | None
    """Why times are null, where they are."""

    @property
    def runs(self) -> bool:
        return self.state != "cannot run"

    def value(self, name: str) -> float | None:
        """A figure; None where it is not known."""
        figure = self.figures[name]
        return None if figure is None else figure.value

    def ratio(self, name: str) -> float | None:
        """A figure over the base's; None where either is not known."""
        figure = self.figures[name]
        return None if figure is None else figure.ratio


class BaseAnswer(AdvicePart):
    """The base, with which everything is compared."""

    weight_dtype: str
    """Format of the weights."""

    kv_dtype: str
    """Format of the cache."""

    same_split: SplitAnswer
    """The layout that techniques are held against by themselves."""

    best_split: SplitAnswer
    """The base's best."""

    split_is: Literal["stated", "best"]
    """Whether the request states the layout in full."""

    notes: list[str]
    """What was changed of the request."""


class Bits(AdvicePart):
    """Nominal bits a value."""

    weights: float
    """Of weights."""

    activations: float
    """Of activations."""

    kv: float
    """Of the cache."""


class RetainedAnswer(AdvicePart):
    """Share of the base's accuracy; 1 where nothing is lost."""

    value: Kept
    """Expected."""

    low: Kept
    """Lower end of the 80 % band."""

    high: Kept
    """Upper end; above 1 a compressed model measures better by chance."""


class AccuracyAnswer(AdvicePart):
    """The share of the base's accuracy that a technique keeps."""

    retained: RetainedAnswer | None
    """Null where nothing near is published."""

    basis: str
    """What it rests on, or what is missing."""

    within_limit: bool | None
    """Whether it keeps the limit; null without one, or where it is unknown."""

    nearest: list[dict[str, Any]]
    """Published figures, the nearest first."""


class MakingAnswer(AdvicePart):
    """The job that makes a checkpoint, once; ``recipe build`` says it of a bundle too."""

    tool: str
    """Program that makes it."""

    method: str
    """Algorithm."""

    devices: int
    """Devices that work: all of the layout where they hold the whole model, else 1."""

    seconds: float
    """Time that is expected, without downloads."""

    low: float
    """Lower end of the band that holds 80 % of published times."""

    high: float
    """Upper end of the band."""

    usd: float | None
    """What the devices cost in that time; null where no price is known."""


class FormatAnswer(AdvicePart):
    """A technique."""

    technique: str
    """Its name."""

    title: str
    """What people call it."""

    kind: Kind
    """What it makes smaller."""

    bits: Bits
    """Nominal."""

    state: State
    """Whether figures stand here, and if not, why in a word."""

    verdict: Verdict
    """What the engine does with it on this device."""

    effect: str
    """What the verdict means."""

    why: str | None
    """Why figures are missing."""

    support: SupportAnswer
    """What the verdict rests on."""

    way: Literal["format", "estimated"] | None
    """Whether a plan has it as a format, or the same physics is applied to changed bytes."""

    rank: int | None
    """Place by the objective; null where it does not run."""

    best_at: list[str]
    """Goals at which no other technique is better."""

    accuracy: AccuracyAnswer
    """What is kept of the base's."""

    same_split: SplitAnswer | None
    """On the layout of the base."""

    best_split: SplitAnswer | None
    """On the best layout for it."""

    checkpoints: list[str]
    """Of the catalog that already are it."""

    checkpoint: Literal["exists", "on load", "to be made"] | None = None
    """Where the checkpoint comes from once it is used; null where no plan has it."""

    making: MakingAnswer | None = None
    """What making it takes, where it is to be made."""

    speed: Literal["fitted", "prior"] | None = None
    """What its times rest on: measurements of the format on the device, or those of others, with a
    wider band. Null without figures."""

    recommended: bool = False
    """Whether it is the one to use: the best of those whose speed is fitted, that keep the accuracy
    asked for, and that a bundle has."""

    set: dict[str, Any] | None
    """Edits that put it into the request; null where no plan has it."""

    notes: list[str]
    """What the estimate leaves out."""


class PairAnswer(AdvicePart):
    """Two techniques together."""

    techniques: Annotated[list[str], Field(min_length=2, max_length=2)]
    """Their names."""

    effect: str
    """``multiply``, ``void``, ``exclusive`` or ``unknown``."""

    sentence: str
    """Why."""

    product: Ratios | None
    """Ratios to the base that each alone would give, multiplied."""

    estimated: Ratios | None
    """Ratios of both at once."""

    retained: RetainedAnswer | None
    """Accuracy that both keep."""


class CompressAnswer(AdvicePart):
    """Techniques of compression on the hardware and the engine of a request."""

    schema_version: Literal[1]
    """Version of this document."""

    model: str
    """The base."""

    device: str
    """The device that is judged."""

    engine: EngineName
    """The engine that is judged."""

    objective: dict[str, float]
    """Goals with their weights."""

    accuracy_limit: float | None
    """Least share of accuracy that is asked for."""

    accuracy_floor: float | None = None
    """Least share by which techniques are ranked: what is asked for, else 0.98; null where accuracy
    is a goal itself."""

    base: BaseAnswer
    """What everything is compared with."""

    formats: list[FormatAnswer]
    """Techniques, best first by the objective."""

    combinations: list[PairAnswer]
    """Pairs of techniques."""

    matrix: MatrixAnswer
    """Who runs what."""

    def row(self, name: str) -> FormatAnswer:
        """The row of a technique; raises InputError where the answer has none."""
        for row in self.formats:
            if row.technique == name:
                return row
        raise InputError(
            f"{name!r} was not judged.", field="technique", hint="See techniques.yaml."
        )

    @property
    def best(self) -> FormatAnswer | None:
        """The recommended technique, else the best by the objective; None where none runs."""
        recommended = next((row for row in self.formats if row.recommended), None)
        return recommended or next((row for row in self.formats if row.rank == 1), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``docs/guide/compress.md`` describes them."""
        return self.model_dump(mode="json")
