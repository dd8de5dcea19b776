"""What differs between two recipes, and what that does to the estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.recipe.expected import figure
from recipe_core.recipe.schema import Recipe

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
    """What differs, as plain values.

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
    moved = [
        row
        for row in differences["estimate"]
        if row["ratio"] is None or abs(row["ratio"] - 1) >= 0.0005
    ]
    lines += ["estimate:" if moved else "estimate: no difference", *map(_figure_change_text, moved)]
    return "\n".join(lines)


def _figure_change_text(row: dict[str, Any]) -> str:
    ratio = ""
    if row["ratio"] is not None:
        band = ", within the band" if row["in_band"] else ""
        ratio = f" ({row['ratio'] - 1:+.1%}{band})"
    return f"  {row['figure']}: {_value_change_text(row)}{ratio}"


def _value_change_text(row: dict[str, Any]) -> str:
    return f"{_diff_value_text(row['before'])} → {_diff_value_text(row['after'])}"


def _diff_value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"
    text = "–" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}…"
