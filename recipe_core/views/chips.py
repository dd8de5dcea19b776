"""Decisions of a request beyond model, traffic, limits and hardware: chips that come off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.hardware.prices import all_offers
from recipe_core.models.search import name_format
from recipe_core.request.describe import hardware_name
from recipe_core.request.edit import shared_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import candidate_key, split_short_name
from recipe_core.views.over_time import policy_title
from recipe_core.views.size_view import engine_title


@dataclass(frozen=True, slots=True)
class Chip:
    """A decision in a few words, and the changes of the request that take it back."""

    label: str
    changes: Mapping[str, Any]


def request_chips(request: PlanRequest) -> list[Chip]:
    """Return what lenses and edits decided, each with what removes it."""
    return [*_format_chips(request), *_search_chips(request), *_run_chips(request)]


def _format_chips(request: PlanRequest) -> Iterator[Chip]:
    options = request.options
    for field, dtypes, noun in (
        ("options.weight_dtypes", options.weight_dtypes, "weights"),
        ("options.kv_dtypes", options.kv_dtypes, "KV cache"),
    ):
        if tuple(dtypes) != ("auto",):
            names = " or ".join(
                "as stored" if dtype == "auto" else name_format(dtype) for dtype in dtypes
            )
            yield Chip(f"{names} {noun}", {field: ("auto",)})
    if options.compression is not None:
        yield Chip("Checkpoint to be made", {"options.compression": None})


def _search_chips(request: PlanRequest) -> Iterator[Chip]:
    options = request.options
    if options.engines:
        titles = " or ".join(map(engine_title, options.engines))
        yield Chip(titles, {"options.engines": ()})
    for n, hardware in enumerate(options.hardware):
        other_clusters = tuple(place for k, place in enumerate(options.hardware) if k != n)
        yield Chip(f"or {hardware_name(hardware)}", {"options.hardware": other_clusters})
    if options.disaggregated:
        yield Chip("Prefill pools", {"options.disaggregated": False})
    if options.context_parallel:
        yield Chip("Context-parallel decoding", {"options.context_parallel": False})
    if options.loads:
        yield Chip(f"{len(options.loads)} other loads", {"options.loads": ()})
    if request.hardware.offer:
        yield Chip(_offer_title(request.hardware.offer), {"hardware.offer": None})


def _offer_title(name: str) -> str:
    """``Price of Lambda``; by its name where no list has it any more."""
    provider = next((offer.provider for offer in all_offers() if offer.name == name), name)
    return f"Price of {provider}"


def _run_chips(request: PlanRequest) -> Iterator[Chip]:
    options, candidate = request.options, request.candidate
    if candidate is not None and candidate_key(candidate.model_dump()):
        shared = shared_candidate(request)
        shared_fields = shared.model_dump(exclude_none=True) if shared else None
        name = split_short_name(candidate.model_dump())
        yield Chip(f"Layout {name}", {"candidate": shared_fields})
    elif candidate is not None and candidate.engine:
        yield Chip(engine_title(candidate.engine), {"candidate.engine": None})
    if options.scaling is not None:
        scaling = options.scaling
        bounds = f" {scaling.min_replicas}–{scaling.max_replicas} replicas"
        none = {"options.scaling": None, "options.simulated": None}
        yield Chip(f"{policy_title(scaling.policy)}{bounds}", none)


def device_text(request: PlanRequest) -> str:
    """The devices of a request in a few words, with those beside them."""
    count = f"{request.hardware.devices:,} × {chip_title(device_profile(request.hardware.device))}"
    beside = len(request.options.hardware)
    return f"{count} +{beside}" if beside else count
