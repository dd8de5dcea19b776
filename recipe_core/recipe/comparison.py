"""Comparison of two recipes, and of a lock with what is here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import share_text
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.engines.training_programs import training_engine
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.checkpoint import checkpoint_digest, snapshot_of
from recipe_core.payload.launcher.devices import run_vendor_tool
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import row_reasons
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.decision import decide, start_reasons
from recipe_core.recipe.figures import TextRow, figure, text_rows
from recipe_core.recipe.lock import Lock
from recipe_core.recipe.locking import make_lock
from recipe_core.recipe.schema import Recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

Level = Literal["same", "differs", "absent", "renewed"]
# Relative difference up to which a figure is the same.
UNMOVED = 0.0005


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is pinned: what the lock says, and what this machine has (``actual``).

    ``absent``: this machine has nothing to compare with. ``renewed``: this version has another
    number of its own, a fit or a price; what the bundle starts is as it was.
    """

    name: str
    locked: str
    actual: str | None
    level: Level

    def to_json(self) -> dict[str, Any]:
        """``{"what", "locked", "found", "level"}``."""
        return {"what": self.name, "locked": self.locked, "found": self.actual, "level": self.level}


def verify_lock(recipe: Recipe, lock: Lock, model: Path | None = None) -> list[Difference]:
    """Everything pinned against what is here; ``model``: a folder that should hold the model."""
    return [*_builder_differences(recipe, lock), *_host_differences(lock, model)]


def _compare_pin(
    name: str, locked: str, actual: str | None, same: bool | None = None
) -> Difference:
    """``same``: left out, whether both are equal."""
    level: Level = "same" if (actual == locked if same is None else same) else "differs"
    return Difference(name, locked, actual, "absent" if actual is None else level)


def _builder_differences(recipe: Recipe, lock: Lock) -> Iterator[Difference]:
    """Yield what this version of the builder would pin for the same split."""
    yield _compare_pin("recipe", lock.recipe_digest, recipe.digest)
    decision = decide(recipe_request(recipe))
    now = make_lock(decision, decision.started(), recipe, folders=False)
    yield _compare_pin(
        f"{lock.engine.name} of this builder", lock.engine.version, now.engine.version
    )
    yield _compare_pin(
        "model architecture", lock.model.architecture_digest, now.model.architecture_digest
    )
    if lock.device and now.device:
        profile = _compare_pin(
            f"profile of {lock.device.name}", lock.device.profile_digest, now.device.profile_digest
        )
        if profile.level == "differs" and isinstance(recipe_request(recipe).hardware.device, str):
            profile = replace(profile, level="renewed")  # a shipped one, not the recipe's own
        yield profile
    yield from _renewed_figures(recipe.estimate, decision.estimate)
    if lock.image:
        image_now = now.image.pinned if now.image else None
        yield _compare_pin("image", lock.image.pinned, image_now)


def _renewed_figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield figures that this version estimates otherwise, each with its change."""
    for row in _figure_changes(before, now):
        if row["before"] is not None and _has_moved(row):
            after = f"{_diff_value_text(row['after'])}{_ratio_text(row)}"
            yield Difference(row["figure"], _diff_value_text(row["before"]), after, "renewed")


def _host_differences(lock: Lock, folder: Path | None) -> Iterator[Difference]:
    """Installed packages, floors of the host's software, the revision and weights of a folder."""
    for name, locked in lock.engine.packages.items():
        try:
            installed: str | None = version(name)
        except PackageNotFoundError:
            installed = None
        same = bool(installed) and SpecifierSet(locked).contains(installed or "", prereleases=True)
        yield _compare_pin(f"package {name}", locked, installed, same)
    for name, floor in lock.floors.items():
        actual = _probe(name)
        enough = actual is not None and _at_least(actual, floor)
        yield _compare_pin(f"{name} (at least)", floor, actual, enough)
    folder = folder or (Path(lock.model.id) if lock.model.id.startswith("/") else None)
    snapshot = snapshot_of(str(folder)) if folder else None
    if lock.model.revision:
        yield _compare_pin(
            "model revision", lock.model.revision, snapshot.revision if snapshot else None
        )
    if locked_weights := lock.model.checkpoint:
        weights = checkpoint_digest(folder) if folder and folder.is_dir() else None
        # Digests of contents and of headers do not compare.
        digest = weights.digest if weights and weights.of == locked_weights.of else None
        yield _compare_pin(f"checkpoint ({locked_weights.of})", locked_weights.digest, digest)


_PROBES = {
    "driver": (
        ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        re.compile(r"^([\d.]+)", re.MULTILINE),
    ),
    "rocm": (("amd-smi", "version"), re.compile(r"ROCm version: ([\d.]+)")),
}


def _probe(name: str) -> str | None:
    """A version as the vendor's own tool reports it; None where there is none."""
    words, pattern = _PROBES.get(name, ((), None))
    output = run_vendor_tool(list(words), []) if pattern else None
    match = pattern.search(output) if pattern and output else None
    return match[1] if match else None


def _at_least(actual: str, floor: str) -> bool:
    try:
        return Version(actual) >= Version(floor)
    except InvalidVersion:
        return False


_DEGREES = ("tp", "pp", "dp", "ep", "cp", "replicas", "prefill")
# Fields of a serving split for any engine; batch limits and memory shares are an engine's own.
_SHARED = (*_DEGREES, "weight_dtype", "kv_dtype", "speculative")


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """A layout on one engine.

    ``reasons``: why it cannot run or be started; empty where it can, which has ``figures``.
    ``changes`` to the request, by dotted field, select it.
    """

    name: str
    title: str
    version: str
    reasons: tuple[str, ...]
    figures: tuple[TextRow, ...]
    changes: Mapping[str, Any]


def other_engines(
    request: PlanRequest, candidate: Mapping[str, Any], *, folders: bool = True
) -> list[OtherEngine]:
    """The candidate on every engine but its own, those where it can run first.

    ``request`` is on the candidate's own hardware.
    """
    names = list(training_data().frameworks) if request.is_training else engine_names()
    names = [name for name in names if name != candidate["engine"]]
    engines = [_on_engine(request, candidate, name, folders) for name in names]
    return sorted(engines, key=lambda engine: bool(engine.reasons))


def _on_engine(
    request: PlanRequest, candidate: Mapping[str, Any], name: str, folders: bool
) -> OtherEngine:
    title, version, changes = (_framework_changes if request.is_training else _engine_changes)(
        request, candidate, name
    )
    split = CandidateRequest.model_validate(changes["candidate"])
    figures: tuple[TextRow, ...] = ()
    try:
        plan, row = plan_candidate(request.model_copy(update={"candidate": split}), folders=folders)
        reasons = row_reasons(plan, row) or start_reasons(plan, row)
        if not reasons:
            figures = tuple(text_rows(plan.kind, plan.estimate(row).to_json()))
    except RecipeError as error:
        reasons = [error.message]
    return OtherEngine(name, title, version, tuple(reasons), figures, changes)


def _engine_changes(
    request: PlanRequest, candidate: Mapping[str, Any], name: str
) -> tuple[str, str, dict[str, Any]]:
    spec = engine(name)
    split = {field: candidate[field] for field in _SHARED if candidate.get(field) is not None}
    usual = default_engine(device_profile(request.hardware.device).runtime).name
    engines = dict.fromkeys([*(request.options.engines or (usual,)), name])
    changes = {"candidate": {**split, "engine": name}, "options.engines": tuple(engines)}
    return spec.title, spec.version, changes


def _framework_changes(
    _request: PlanRequest, candidate: Mapping[str, Any], name: str
) -> tuple[str, str, dict[str, Any]]:
    title = training_data().frameworks[name].title
    return title, training_engine(name).version, {"candidate": {**candidate, "engine": name}}


SECTIONS = (
    "kind",
    "model",
    "device",
    "request",
    "candidate",
    "max_context",
    "engine",
    "environment",
    "parameters",
    "lock",
    "variants",
    "notes",
)
# Fields that differ whenever others do, and say no more than these.
_REPEATED = ("lock.recipe_digest", "request.candidate", "device.names")
FIGURES = {
    "memory": ("total_bytes",),
    "serving": ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"),
    "training": ("step_s", "tokens_per_s", "tokens_per_s_per_gpu"),
    "cost": ("usd_per_hour", "usd_per_million_output_tokens", "usd_per_million_tokens"),
    "energy": ("watts", "joules_per_token"),
}


def diff_recipes(before: Recipe, after: Recipe) -> dict[str, Any]:
    """Return what differs, as plain values.

    ``{"same", "before", "after", "changed": {section: [{"field", "before", "after"}]},
    "estimate": [{"figure", "before", "after", "ratio", "in_band"}]}``. ``in_band``: whether the
    later figure lies within the band of the earlier one (None where that has no band).
    """
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changed = {
        section: list(_changed_leaves(section, old[section], new[section])) for section in SECTIONS
    }
    return {
        "same": before.digest == after.digest,
        "before": before.name,
        "after": after.name,
        "changed": {section: rows for section, rows in changed.items() if rows},
        "estimate": list(_figure_changes(before.estimate, after.estimate)),
    }


def _changed_leaves(field: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:
    """Leaves that differ, by dotted field; a missing one is None."""
    if field in _REPEATED or before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _changed_leaves(f"{field}.{key}", before.get(key), after.get(key))
    else:
        yield {"field": field, "before": before, "after": after}


def _figure_changes(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for part, names in FIGURES.items():
        for name in names:
            path = f"{part}.{name}"
            then, now = figure(before, path), figure(after, path)
            if then is None and now is None:
                continue
            band = before["bands"].get(name)
            ratio = now / then if now is not None and then else None
            inside = band[0] <= now <= band[1] if band and now is not None else None
            yield {
                "figure": f"{part}.{name}",
                "before": then,
                "after": now,
                "ratio": ratio,
                "in_band": inside,
            }


def diff_text(differences: dict[str, Any]) -> str:
    """The differences for a terminal."""
    if differences["same"]:
        return f"{differences['before']}: no difference"
    lines = [f"{differences['before']} → {differences['after']}"]
    for rows in differences["changed"].values():
        lines += [f"  {row['field']}: {_value_change_text(row)}" for row in rows]
    moved = [row for row in differences["estimate"] if _has_moved(row)]
    lines += ["estimate:" if moved else "estimate: no difference", *map(_figure_change_text, moved)]
    return "\n".join(lines)


def _has_moved(row: Mapping[str, Any]) -> bool:
    return row["ratio"] is None or abs(row["ratio"] - 1) >= UNMOVED


def _figure_change_text(row: dict[str, Any]) -> str:
    return f"  {row['figure']}: {_value_change_text(row)}{_ratio_text(row)}"


def _ratio_text(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    band = ", within the band" if row["in_band"] else ""
    return f" ({share_text(row['ratio'] - 1, 1, signed=True)}{band})"


def _value_change_text(row: dict[str, Any]) -> str:
    return f"{_diff_value_text(row['before'])} → {_diff_value_text(row['after'])}"


def _diff_value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"
    text = "–" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}…"
