"""A fleet as every door and page asks for it: placed, with its moves, and changed beside that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from recipe_core.base.budget import report_stage
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.columns import ANYWHERE, Sources
from recipe_core.fleets.inventory.read import merge_inventories, read_inventory
from recipe_core.fleets.moves import Moves
from recipe_core.fleets.place import move_fleet, place_fleet
from recipe_core.fleets.pools import resolve_pools
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges, compare_answers
from recipe_core.models.catalog import load_model_spec


@dataclass(frozen=True, slots=True)
class AnsweredFleet:
    """The answer of a fleet, the moves from what runs today, and the answer of the changed one."""

    answer: FleetAnswer
    moves: Moves | None
    changed: FleetAnswer | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as the contract writes it."""
        out = self.answer.to_json()
        if self.moves is not None:
            out["moves"] = self.moves.to_json()
        if self.changed is not None:
            differences = compare_answers(self.answer, self.changed)
            out["what_if"] = {"answer": self.changed.to_json(), "differences": differences}
        return out


class FleetQuestion(NamedTuple):
    """A fleet, changes of it that are tried, and what to know of inventories in it."""

    request: FleetRequest
    changes: FleetChanges | None = None
    notes: tuple[str, ...] = ()

    def place(self, *, changed: bool = False, month: float = 0.0, **options: Any) -> FleetAnswer:
        """Place the fleet, or with its changes; ``options`` are those of ``place_fleet``."""
        request = self.request
        if changed and self.changes is not None:
            request, month = self.changes.apply(request), month + self.changes.months
        options["watch"] = options.get("watch") or report_search
        answer = place_fleet(request, month=month, **options)
        return replace(answer, notes=(*self.notes, *answer.notes))

    def answer(self, *, sources: Sources = ANYWHERE, **options: Any) -> AnsweredFleet:
        """Place the fleet, plan the moves from what runs today, and place it with its changes."""
        answer = self.place(sources=sources, **options)
        moves = move_fleet(answer, sources)
        changed = None
        if self.changes is not None:
            changed = self.place(changed=True, sources=sources, **options)
        return AnsweredFleet(answer, moves, changed)


def read_fleet_question(
    fleet: Any,
    what_if: Any = None,
    inventories: Iterable[tuple[str, str]] = (),
    *,
    folders: bool = True,
) -> FleetQuestion:
    """Read a fleet, changes of it and inventories (names and texts), as far as takes no time.

    ``folders``: whether models may be named by a path on this machine.

    Raises:
        InputError: naming the first wrong field.
    """
    listed = [read_inventory(text, name) for name, text in inventories]
    notes = [note for inventory in listed for note in inventory.notes]
    if listed:
        fleet, merged_notes = merge_inventories(fleet, listed)
        notes += merged_notes
    request = fleet if isinstance(fleet, FleetRequest) else FleetRequest.parse(fleet)
    resolve_pools(request)
    _check_models(request, folders)
    changes = what_if
    if what_if is not None:
        changes = what_if if isinstance(what_if, FleetChanges) else FleetChanges.parse(what_if)
        changes.apply(request)
    return FleetQuestion(request, changes, tuple(notes))


def _check_models(request: FleetRequest, folders: bool) -> None:
    for kind in ("models", "jobs"):
        for k, part in enumerate(getattr(request, kind)):
            try:
                load_model_spec(part.model, folders=folders)
            except RecipeError as error:
                field = f"{kind}.{k}.model"
                raise InputError(error.message, field=field, hint=error.hint) from None


def report_search(objective: float, bound: float, seconds: float) -> None:
    """Say how far the search for a better fleet is, to whoever watches the progress."""
    gap = abs(objective - bound) / max(abs(objective), 1e-9)
    gap_text = f" gap {100 * gap:.1f} %," if math.isfinite(gap) else ""
    report_stage(f"placing:{gap_text} {seconds:.0f} s")
