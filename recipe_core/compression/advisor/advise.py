"""The advisor: every technique applied to one plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from recipe_core.accuracy.accuracy import estimate_retained
from recipe_core.accuracy.checkpoints import with_own_figure
from recipe_core.accuracy.choice import can_make, choose_tool
from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.runners import Support, runners
from recipe_core.accuracy.technique import Technique, technique, techniques
from recipe_core.base import budget
from recipe_core.base.documents import finite
from recipe_core.compression.advisor.changed_model import (
    Change,
    NoChange,
    change_of,
    estimated_entry,
    runs_weights,
)
from recipe_core.compression.advisor.comparison import (
    Base,
    Judged,
    accuracy_floor,
    advice_base,
    judge_change,
    rank_formats,
)
from recipe_core.compression.advisor.matrix import matrix_of, retained_answer, technique_pairs
from recipe_core.compression.advisor.result import (
    AccuracyAnswer,
    BaseAnswer,
    Bits,
    CompressAnswer,
    EngineName,
    FormatAnswer,
    MakingAnswer,
    SplitAnswer,
    State,
)
from recipe_core.compression.advisor.support import SupportAnswer
from recipe_core.compression.required import compression_estimate, compression_job
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.serving.bands import speed_grade
from recipe_core.models.variants import model_variants
from recipe_core.request.compression import Compression
from recipe_core.request.schema import PlanRequest

UNSAID = "No source that was read says whether it runs."
SLOWER = "no faster than 16 bit, and by how much slower no source says"
EFFECTS: dict[str, str] = {
    "native": "native: saves memory, and products run at the format's own rate",
    "weight-only kernel": "weight-only kernel: saves memory and its traffic; products stay 16 bit",
    "emulated": "emulated: saves memory, costs time",
    "memory only": "memory only: stored small at most, no kernel to gain from it",
    "refused": "refused: the engine does not start with it",
    "unknown": "unknown: no source says whether it runs",
}
CACHE_EFFECT = "native: the cache is read in it, so that it holds more and less is read"
SHAPE_EFFECT = "a smaller model in the same format: any engine that runs the base runs it"
# Published figures beside an expected accuracy.
NEAREST = 3
# Verdicts of which only memory is estimated.
MEMORY_ALONE = ("emulated", "memory only")


def advise(
    request: PlanRequest,
    *,
    names: Sequence[str] | None = None,
    folders: bool = True,
    corrections: Corrections | None = None,
) -> CompressAnswer:
    """Judge techniques on the hardware and the engine of a request.

    Those that a plan has as formats are planned as such. Others are estimated by the same physics
    where only bytes, layers or widths change, and left out, with the reason, where that would be
    guessed.

    Args:
        request: of a model to be served; formats that it states do not count, its split is kept.
        names: techniques to judge; all of ``techniques.yaml`` by default.
        folders: whether the model may be named by a path on this machine.
        corrections: what runs of one's own teach.

    Raises:
        InputError: for training, an unknown technique, and for what a plan refuses.
        RecipeError: when there is no split at all.
    """
    by_name = {name: technique(name) for name in names or techniques()}
    base = advice_base(request, folders=folders, corrections=corrections)
    setting, limit = base.setting, request.objective.limits.accuracy_recovery
    rows: list[FormatAnswer] = []
    shares: dict[str, Retained] = {}
    shared: Shared = {}
    with budget.track_task(len(by_name)):
        for name, method in by_name.items():
            budget.spend()
            support = _support_on_base(name, base)
            change = change_of(name, method, setting, support.verdict)
            shares[name] = _accuracy_of_change(name, base, request, change)
            accuracy = _accuracy_answer(shares[name], limit)
            rows.append(_advise_row(name, method, base, support, change, accuracy, shared))
            budget.count_step()
    ordered = rank_formats(rows, base, request.objective)
    return CompressAnswer(
        schema_version=1,
        model=setting.model.name,
        device=setting.cluster.device.name,
        engine=EngineName(name=setting.engine.name, version=setting.engine.version),
        objective={str(goal): weight for goal, weight in request.objective.goals.items()},
        accuracy_limit=limit,
        accuracy_floor=accuracy_floor(request.objective),
        base=BaseAnswer(
            weight_dtype=setting.weight_dtype,
            kv_dtype=setting.kv_dtype,
            same_split=base.same_split,
            best_split=base.best,
            split_is="stated" if base.states_split else "best",
            notes=list(base.notes),
        ),
        formats=ordered,
        combinations=technique_pairs(base, ordered, shares),
        matrix=matrix_of(setting.engine.name, setting.cluster.device),
    )


# Judged changes by what tells their plans apart.
Shared = dict[Any, Judged]


def _advise_row(
    name: str,
    technique: Technique,
    base: Base,
    support: Support,
    change: Change | NoChange,
    accuracy: AccuracyAnswer,
    shared: Shared,
) -> FormatAnswer:
    """The row of a technique, not ranked yet."""
    checkpoints = _stored_checkpoints(technique, base)
    fields: dict[str, Any] = {
        "technique": name,
        "title": technique.title,
        "kind": technique.kind,
        "bits": Bits(
            weights=technique.weight_bits, activations=technique.act_bits, kv=technique.kv_bits
        ),
        "verdict": support.verdict,
        "effect": _effect_text(name, technique, support),
        "support": SupportAnswer(**support.to_json()),
        "accuracy": accuracy,
        "checkpoints": list(checkpoints),
        "rank": None,
        "best_at": [],
    }
    state = _without_figures(technique, support, change, base)
    if state is not None or isinstance(change, NoChange):
        return FormatAnswer(
            **fields,
            state=state or "void",
            why=_missing_reason(support, change) or None,
            way=None,
            same_split=None,
            best_split=None,
            set=None,
            notes=[],
        )
    alone = SLOWER if support.verdict in MEMORY_ALONE else ""
    key = (change.key, bool(alone))
    if key not in shared:
        shared[key] = judge_change(base, change, alone)
    judged = shared[key]
    same_split, best = judged.same_split, judged.best_split
    edits = _request_edits(name, technique, checkpoints, change, base)
    return FormatAnswer(
        **fields,
        state=_figures_state(same_split, best, alone),
        why=alone or _no_split(same_split, best) or None,
        way=change.planned_as,
        same_split=same_split,
        best_split=best,
        speed="prior" if change.assumed else speed_grade(judged.setting),
        checkpoint=_checkpoint_source(edits),
        making=_making(edits, judged),
        set=edits,
        notes=list(change.notes),
    )


def _accuracy_answer(share: Retained, limit: float | None) -> AccuracyAnswer:
    return AccuracyAnswer(
        retained=retained_answer(share),
        basis=share.basis,
        within_limit=None if limit is None or not share.is_known else share.value >= limit,
        nearest=[figure.to_json() for figure in share.nearest],
    )


def _support_on_base(name: str, base: Base) -> Support:
    device, engine = base.setting.cluster.device, base.setting.engine.name
    if engine in runners():
        return support_of(name, engine, device, base.setting.engine.version)
    note = f"No source says what {base.setting.engine.title} runs."
    return Support(name, engine, device.name, "unknown", note=note)


def _accuracy_of_change(
    name: str, base: Base, request: PlanRequest, change: Change | NoChange
) -> Retained:
    """Return what a technique keeps of the base; of a sibling by its name, which tells its size."""
    model, kind = base.setting.model, request.objective.accuracy_of
    if not model.generates:
        return Retained(
            math.nan,
            math.nan,
            math.nan,
            "Unknown: published figures are of models that generate text.",
            is_known=False,
        )
    sibling = change.model.name if isinstance(change, Change) else ""
    benchmark = "" if kind == "mean" else kind
    expected = estimate_retained(
        model.name,
        name,
        method=sibling if estimated_entry(name).shape == "sibling" else "",
        benchmark=benchmark,
        parameters_b=round(model.parameters / 1e9, 3),
        nearest=NEAREST,
    )
    names = [model_id for model_id in (model.name, model.weights) if model_id]
    return with_own_figure(expected, base.setting.compressed, names, name, benchmark=benchmark)


def _effect_text(name: str, technique: Technique, support: Support) -> str:
    if technique.kind == "kv cache" and support.verdict == "native":
        return CACHE_EFFECT
    if estimated_entry(name).shape in ("layers", "width", "experts", "sibling") and support.runs:
        return SHAPE_EFFECT
    return EFFECTS[support.verdict]


def _without_figures(
    technique: Technique, support: Support, change: Change | NoChange, base: Base
) -> State | None:
    if isinstance(change, NoChange) and change.already:
        return "already"
    if support.verdict == "refused":
        return "refused"
    if isinstance(change, NoChange):
        return "void"
    if support.verdict == "unknown" and not _known_to_plans(technique, change, base):
        return "unknown"
    return None


def _known_to_plans(technique: Technique, change: Change, base: Base) -> bool:
    """Return whether the files that plans are made by say that the engine runs the formats here."""
    if change.planned_as == "estimated":
        return False
    engine, device = base.setting.engine, base.setting.cluster.device
    weights, cache = technique.weight_dtype, technique.kv_dtype
    return (weights is None or runs_weights(engine, device, weights)) and (
        cache is None or (cache in engine.free_kv_dtypes and cache in device.kv_dtypes)
    )


def _missing_reason(support: Support, change: Change | NoChange) -> str:
    if isinstance(change, NoChange) and (change.already or support.verdict != "refused"):
        return _sentence(change.why)
    if support.verdict == "unknown" and not support.source:
        return UNSAID
    return _sentence(support.words or support.note or UNSAID)


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def _figures_state(same_split: SplitAnswer, best: SplitAnswer | None, alone: str) -> State:
    if alone:
        return "memory only"
    return "estimated" if same_split.runs or best is not None else "no split"


def _no_split(same_split: SplitAnswer, best: SplitAnswer | None) -> str:
    if same_split.runs or best is not None:
        return ""
    return _sentence(
        same_split.reasons[0] if same_split.reasons else "no layout of the hardware runs it"
    )


# The request with it


def _stored_checkpoints(technique: Technique, base: Base) -> tuple[str, ...]:
    if technique.weight_dtype is None or technique.removed:
        return ()
    stored = model_variants(base.setting.model.name)
    return tuple(
        name for name, dtype in stored.items() if dtype.split("-")[0] == technique.weight_dtype
    )


def _request_edits(
    name: str, technique: Technique, checkpoints: tuple[str, ...], change: Change, base: Base
) -> dict[str, Any] | None:
    """Edits that put a technique into the request; None where no plan has it."""
    if estimated_entry(name).shape == "sibling":
        return {"model": change.model.name}
    if change.planned_as == "estimated" or (
        technique.weight_dtype is None and technique.kv_dtype is None
    ):
        return None
    fields: dict[str, Any] = {}
    if technique.weight_dtype is not None:
        fields["options.weight_dtypes"] = ["auto" if checkpoints else technique.weight_dtype]
    if checkpoints:
        fields["model"] = checkpoints[0]
    elif technique.weight_dtype is not None and _can_be_made(name, technique.weight_dtype, base):
        fields["options.compression"] = {"technique": name}
    if technique.kv_dtype is not None:
        fields["options.kv_dtypes"] = [technique.kv_dtype]
    return fields


def _checkpoint_source(
    edits: Mapping[str, Any] | None,
) -> Literal["exists", "on load", "to be made"] | None:
    if edits is None:
        return None
    if "options.compression" in edits:
        return "to be made"
    return "exists" if "model" in edits else "on load"


def _making(edits: Mapping[str, Any] | None, judged: Judged) -> MakingAnswer | None:
    """Estimate the job that makes the checkpoint; None where none is made."""
    if edits is None or "options.compression" not in edits:
        return None
    setting, split = judged.setting, judged.best_split or judged.same_split
    choice = choose_tool(
        Compression(**edits["options.compression"]),
        setting.weight_dtype,
        setting.engine.name,
        setting.cluster.device.runtime,
        needed=True,
    )
    if choice is None:
        return None
    devices = int(split.value("gpus") or 1)
    job = compression_estimate(choice, setting, devices)
    resident = compression_job(choice, setting.model).resident
    return MakingAnswer(
        tool=job.tool,
        method=job.method,
        devices=devices if resident else 1,
        seconds=job.seconds.value,
        low=job.seconds.low,
        high=job.seconds.high,
        usd=job.usd,
    )


def _can_be_made(name: str, dtype: str, base: Base) -> bool:
    """Return whether a bundle makes the checkpoint that the engine does not make while it loads."""
    engine, device = base.setting.engine, base.setting.cluster.device
    if dtype in engine.online_weight_dtypes:
        return False
    return can_make(Compression(technique=name), dtype, engine.name, device.runtime)


def formats_answer(request: Mapping[str, Any], *, folders: bool = False) -> dict[str, Any]:
    """The advice on a request, with null for numbers that are not finite.

    Raises:
        RecipeError: as ``advise``.
    """
    answer: dict[str, Any] = finite(advise(PlanRequest.parse(request), folders=folders).to_json())
    return answer
