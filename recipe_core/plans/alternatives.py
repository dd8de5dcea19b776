"""Choices beside the best split that are worth a click, each really planned.

Cheaper number formats that engine and device support, fewer and more devices, and the best split
that keeps the limits more surely. Each says what its formats are expected to keep of the accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from recipe_core.accuracy.published import Retained
from recipe_core.base.units import accuracy_text, chance_text, plain_range_text
from recipe_core.engines.spec import engine
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.measured.support import fitted_engines_for
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.hardware.cluster import short_title
from recipe_core.plans.limits import limits_phrase, stated_limits
from recipe_core.plans.plan_json import device_word, measure_text
from recipe_core.plans.problem import MAX_DEVICES
from recipe_core.plans.rank import NO_DIFFERENCE, is_row_priced, log_score, ties_elsewhere
from recipe_core.plans.remedies import Change
from recipe_core.plans.serving_remedies import catalog_formats, online_formats
from recipe_core.plans.splits import row_key
from recipe_core.request.edit import select_split, shared_candidate
from recipe_core.request.objective import SURE
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import key_load, split_key

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

Kind = Literal["weights", "checkpoint", "made", "cache", "fewer", "more", "sure", "engine"]
# Kinds that change number formats.
FORMATS = ("weights", "checkpoint", "made", "cache")
AT_MOST = 5
# Share by which a figure must be better to be worth a click.
LEAST_GAIN = 0.02
# The same, of a figure that is gained at the price of the goal's.
LEAST_TRADED = 0.1
# Rows of a plan up to which other requests are planned beside it: more would take a second.
MOST_ROWS = 4000
# Formats that a checkpoint can be made in (``recipe compress``).
MADE = ("fp8", "int8", "int4", "nvfp4", "mxfp4")
# Checkpoints of the same model in other formats that are tried at most.
OTHER_CHECKPOINTS = 3

# Edits to try; without a title they are called after the devices that are then used.
Edit = tuple[Kind, str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Alternative(Change):
    """A choice beside the best split.

    Attributes:
        kind: what changes: weights that the engine converts, another checkpoint of the model, one
            that has to be made first, the cache's format, fewer or more devices, or how surely the
            limits must hold.
        title: what is different, in a few words: ``fp8 weights``, ``4 GPUs``.
        figure: the goal's figure then, as a text with its unit.
        change: by which share the figure is then larger (negative: smaller).
        gain: by how much what it improves is better: a logarithm; negative for a runner-up that is
            worse.
        gained: the figure that improves instead of the goal's, and by which share; empty where the
            goal's does, and for a runner-up that improves nothing.
        accuracy: what its formats keep of the accuracy of the model's base; None where they stay.
        tie: whether nobody can tell which of it and the best split measures better by the goal.
    """

    kind: Kind
    title: str
    figure: str
    change: float
    gain: float
    gained: str = ""
    accuracy: Retained | None = None
    tie: bool = False

    @property
    def accuracy_text(self) -> str:
        """Say how much accuracy other number formats keep; empty where none change.

        ``Keeps 98.6 % of the base's accuracy, 93.5 % to 100 % likely.``
        """
        if self.accuracy is None:
            return ""
        if not self.accuracy.is_known:
            return f"What it keeps of the base's accuracy is unknown: {self.accuracy.basis}"
        ends = (self.accuracy.low, self.accuracy.high)
        likely = "" if ends[0] == ends[1] else f", {plain_range_text(ends, accuracy_text)} likely"
        return f"Keeps {accuracy_text(self.accuracy.value)} of the base's accuracy{likely}."

    @property
    def label(self) -> str:
        """``fp8 weights: $1.71, −15 %, 99.6 % accuracy``.

        With what is gained where the goal's figure is not; of a tie that it is one.
        """
        share = NO_DIFFERENCE if self.tie else share_change_text(self.change)
        recovery = self.accuracy
        if self.gained:
            return f"{self.title}: {self.gained}, {self.figure} ({share})"
        accuracy = (
            f", {accuracy_text(recovery.value)} accuracy" if recovery and recovery.is_known else ""
        )
        return f"{self.title}: {self.figure}, {share}{accuracy}"


def share_change_text(share: float) -> str:
    """A relative difference: ``−15 %``, ``+1,200 %``, ``same``."""
    points = round(share * 100)
    if points == 0:
        return "same"
    return f"{'+' if points > 0 else '−'}{abs(points):,} %"


def find_alternatives(plan: Plan, *, runners_up: bool = False) -> list[Alternative]:
    """Choices beside the best split, the best of each kind; those that improve the goal first.

    Last are those that improve another figure instead.

    Empty where nothing is feasible. Limits on percentiles and plans beyond ``MOST_ROWS`` rows leave
    out what had to be planned anew. ``runners_up``: with the best other engine and the best other
    format, also where they improve nothing.
    """
    best = plan.best_row
    if best is None:
        return []
    options = [*_choices_in_plan(plan, best)]
    if plan.request.objective.limits.percentile is None and len(plan) <= MOST_ROWS:
        options += _plan_edits(plan, best, runners_up=runners_up)
        if any(option.kind in FORMATS and option.gain > 0 for option in options):
            options = [
                option for option in options if option.kind not in FORMATS or option.gain > 0
            ]
    by_kind: dict[Kind, Alternative] = {}
    for option in sorted(options, key=lambda option: -option.gain):
        by_kind.setdefault(option.kind, option)
    # what makes the choice safe comes first, then by the goal's figure: runners-up may be worse
    choices = sorted(by_kind.values(), key=lambda choice: bool(choice.gained))
    choices.sort(key=lambda choice: choice.kind != "sure")
    return choices[:AT_MOST]


def _choices_in_plan(plan: Plan, best: int) -> Iterator[Alternative]:
    """The best split with fewer devices, and with more, on the best one's cluster."""
    devices = plan.raw("gpus")
    rows = plan.order[plan.holds[plan.order]]
    rows = rows[plan.clusters_of_rows[rows] == plan.clusters_of_rows[best]]
    sides: dict[Kind, Any] = {
        "fewer": devices[rows] < devices[best],
        "more": devices[rows] > devices[best],
    }
    for kind, beyond in sides.items():
        for row in map(int, rows[beyond][:1]):
            key = row_key(plan, row)
            edit: Edit = (kind, "", select_split(plan.request, key))
            for choice in _compare_choice(plan, best, plan, row, edit):  # of the first cluster then
                yield replace(choice, key=split_key(plan.candidate(row), load=key_load(key)))


def _plan_edits(plan: Plan, best: int, *, runners_up: bool) -> Iterator[Alternative]:
    """Yield what another request gives: formats, engines, more devices than there are."""
    # the split is left to the ranking again
    shared, without_split = shared_candidate(plan.request), dict[str, Any]()
    if plan.request.candidate is not None:
        without_split["candidate"] = shared.model_dump(exclude_none=True) if shared else None
    edits = [*_surer_edits(plan, best), *_format_edits(plan, best), *_device_edits(plan, best)]
    edits += _engine_edits(plan, best) if runners_up else []
    for kind, title, edit in edits:
        fields = {**without_split, **edit}
        best_plan = plan.replan_best(fields)
        if best_plan is None:
            continue
        after, row = best_plan
        if (after.queues[row] and not plan.queues[best]) or (
            after.uncertain[row] and not plan.uncertain[best]
        ):
            continue
        if kind in ("weights", "made") and (
            after.setting(row).needs_other_checkpoint != (kind == "made")
        ):
            continue
        compared = kind == "engine" or (runners_up and kind in FORMATS)
        narrowed = _narrow_edit((kind, title, fields), after.candidate(row))
        yield from _compare_choice(plan, best, after, row, narrowed, worse=compared)


def row_devices_text(plan: Plan, row: int) -> str:
    """``4 GPUs`` of a row; of several clusters ``4 × H100 SXM``."""
    number = int(plan.raw("gpus")[row])
    if len(plan.problem.clusters) > 1:
        return f"{number:,} × {short_title(plan.setting(row).cluster.device)}"
    plural = "" if number == 1 else "s"
    return f"{number:,} {device_word(plan)}{plural}"


def _surer_edits(plan: Plan, best: int) -> Iterator[Edit]:
    """Limits that have to hold with ``SURE``, where they may well be missed and loads can give."""
    doubtful = bool(stated_limits(plan)) and float(plan.chances[best]) < SURE
    confidence = plan.request.objective.required_confidence
    if doubtful and plan.request.load_searched and confidence < SURE:
        yield "sure", f"{SURE * 100:.0f} % sure", {"objective.confidence": SURE}


def _format_edits(plan: Plan, best: int) -> Iterator[Edit]:
    """Weights that the engine converts itself, checkpoints in other formats, and caches."""
    if plan.kind != "serving":
        return
    setting = plan.setting(best)
    if weights := tuple(online_formats(setting)):
        yield "weights", "", {"options.weight_dtypes": weights}
    yield from _checkpoint_edits(setting, plan.request)
    caches = tuple(
        dtype
        for dtype in setting.cluster.device.kv_dtypes
        if dtype in setting.engine.kv_dtypes and dtype != setting.kv_dtype
    )
    if caches:
        yield "cache", "", {"options.kv_dtypes": caches}


def _checkpoint_edits(setting: Setting, request: PlanRequest) -> Iterator[Edit]:
    """Checkpoints of the catalog, one a format, and formats that would have to be made.

    Of the latter only where the objective is about accuracy, which says that formats may change.
    """
    if not isinstance(request.model, str):
        return
    by_format = catalog_formats(setting)
    for dtype, name in [*by_format.items()][:OTHER_CHECKPOINTS]:
        fields = {"model": name, "options.weight_dtypes": ("auto",)}
        yield "checkpoint", f"{dtype} checkpoint", fields
    objective = request.objective
    if objective.limits.accuracy_recovery is None and "accuracy" not in objective.goals:
        return
    available = {setting.weight_dtype, *by_format, *setting.engine.online_weight_dtypes}
    for dtype in setting.cluster.device.weight_dtypes:
        if dtype in MADE and dtype not in available:
            yield "made", f"{dtype} weights, to be made", {"options.weight_dtypes": (dtype,)}


def _engine_edits(plan: Plan, best: int) -> Iterator[Edit]:
    """Every other engine whose estimates are fitted to measurements on the device."""
    if plan.kind != "serving":
        return
    setting = plan.setting(best)
    fitted = fitted_engines_for(setting.cluster.device)
    if other_engines := tuple(name for name in fitted if name != setting.engine.name):
        yield "engine", "", {"options.engines": other_engines}


def _narrow_edit(edit: Edit, candidate: Mapping[str, Any]) -> Edit:
    """The edit that gives the same best split alone, where one tried several values at once."""
    kind, title, fields = edit
    match kind:
        case "engine":
            name = candidate["engine"]
            return kind, engine(name).title, {**fields, "options.engines": (name,)}
        case "weights":
            dtype = candidate["weight_dtype"]
            return kind, f"{dtype} weights", {**fields, "options.weight_dtypes": (dtype,)}
        case "cache":
            dtype = candidate["kv_dtype"]
            return kind, f"{dtype} cache", {**fields, "options.kv_dtypes": (dtype,)}
    return kind, title, fields


def _device_edits(plan: Plan, best: int) -> Iterator[Edit]:
    """The next size of the hardware, where the best split uses all that is there."""
    hardware, place = plan.request.hardware, plan.setting(best).cluster
    uses_all = len(plan.problem.clusters) == 1 and plan.raw("gpus")[best] >= place.devices
    if not uses_all or place.devices * 2 > MAX_DEVICES[plan.kind]:
        return
    field = "per_node" if hardware.per_node * 2 <= place.device.node.devices else "nodes"
    yield "more", "", {f"hardware.{field}": getattr(hardware, field) * 2}


def _compare_choice(
    plan: Plan, best: int, after: Plan, row: int, edit: Edit, *, worse: bool = False
) -> Iterator[Alternative]:
    """The choice with its figures, where it improves the goal or trades it for another figure.

    ``worse``: also where it does neither.
    """
    kind, title, fields = edit
    name = goal_measure(plan, best)
    before, then = float(plan.raw(name)[best]), float(after.raw(name)[row])
    gain, gained = float((log_score(plan, [best]) - log_score(after, [row]))[0]), ""
    if not (math.isfinite(gain) and before > 0 and math.isfinite(then)):
        return
    if kind == "sure":
        gained = _limits_kept(after, row)
    elif gain < math.log1p(LEAST_GAIN) and not worse:
        traded = _best_trade(plan, best, after, row, name)
        if traded is None or kind not in ("fewer", "more"):
            return
        gained, gain = traded
    yield Alternative(
        fields=dict(fields),
        candidate=after.candidate(row),
        key=row_key(after, row),
        kind=kind,
        title=title or row_devices_text(after, row),
        figure=measure_text(after, name, row),
        change=then / before - 1,
        gain=gain,
        gained=gained,
        accuracy=accuracy_of(after.setting(row)) if kind in FORMATS else None,
        tie=ties_elsewhere(after, row, plan, best),
    )


def _limits_kept(after: Plan, row: int) -> str:
    return f"holds {limits_phrase(after)} with {chance_text(float(after.chances[row]))}"


def goal_measure(plan: Plan, best: int) -> str:
    """The measure of the first goal; where its price is unknown, what stands for it."""
    goal = next(iter(plan.request.objective.goals))
    column = plan.spec.goals[goal][0]
    by_column = {measure.column: name for name, measure in plan.measures.items()}
    column = plan.spec.shown_as.get(column, column)
    if column in plan.spec.unpriced and not is_row_priced(plan, best):
        column = plan.spec.unpriced[column]
    return by_column[column]


def _best_trade(
    plan: Plan, best: int, after: Plan, row: int, goal: str
) -> tuple[str, float] | None:
    """The figure that improves most while the goal's does not, and by how much."""
    out: tuple[str, float] | None = None
    for name in dict.fromkeys([*plan.shown.headline, "usd_hour"]):
        measure = plan.measures[name]
        before, then = float(plan.raw(name)[best]), float(after.raw(name)[row])
        # interactivity says the time per output token over again
        if name in (goal, "interactivity") or not (
            np.isfinite([before, then]).all() and before > 0 and then > 0
        ):
            continue
        gain = math.log(then / before) * (1 if measure.more_is_better else -1)
        if gain >= math.log1p(LEAST_TRADED) and (out is None or gain > out[1]):
            words = f"{measure_text(after, name, row)}{_WORDS.get(name, '')}"
            out = f"{words} ({share_change_text(then / before - 1)})", gain
    return out


# What tells figures of one unit apart.
_WORDS = {"ttft": " to first token", "usd_hour": " an hour", "wall": " to finish"}
