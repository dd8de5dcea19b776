"""A plan of moves: from what runs today to a fleet's answer, without dropping a model's load.

At every moment what serves of a model holds its load, and no pool has more devices in use than it
has. Where no such order is found, the devices that are lacking are named. A model whose load is not
held today, or will not be, keeps what both hold. Devices that are cut are counted by slice, as if
replicas stood packed. Spare replicas of headroom may be in use meanwhile.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from recipe_core.base.errors import InputError, unknown
from recipe_core.engines.spec import engine, engine_names
from recipe_core.fleets.answer import FleetAnswer, Placement
from recipe_core.fleets.columns import ANYWHERE, Sources, make_columns
from recipe_core.fleets.order import Board, Counts, Spot, find_lacking, find_order
from recipe_core.fleets.placing import MOST_NODES
from recipe_core.fleets.pools import resolve_pools
from recipe_core.fleets.request import FleetRequest, Today
from recipe_core.hardware.slices import list_slices
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.over_time import Start
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_name
from recipe_core.scaling.scenario import start_of

_DEGREES = ("tp", "pp", "dp", "ep", "cp")
Kind = Literal["start", "stop", "cut", "uncut", "weights"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step; those of one ``wave`` may run at once, and the next waits for all of them."""

    wave: int
    kind: Kind
    pool: str | None
    model: str | None
    replicas: int
    devices: float
    """Devices that it takes or frees; of cuts, how many are cut."""
    text: str
    weights: Mapping[str, float]
    """Shares of the model's requests by pool and layout: after a start, before a stop drains."""
    seconds: float | None = None
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """Steps in their order; with ``lacking``, devices by pool that must be there meanwhile."""

    steps: tuple[Step, ...]
    lacking: Mapping[str, float]
    seconds: float | None
    """Time of all starts, where each is known; waves follow each other."""
    notes: tuple[str, ...]

    @property
    def is_safe(self) -> bool:
        return not self.lacking

    def to_json(self) -> dict[str, Any]:
        """Its fields as plain values."""
        return asdict(self)


def plan_moves(
    today: Sequence[Today] | FleetAnswer, answer: FleetAnswer, sources: Sources = ANYWHERE
) -> Moves:
    """Return steps from what runs today to an answer.

    Args:
        today: replicas that run, such as the request's, or an answer that was put in place.
        answer: the fleet to reach, with the replicas of the busiest period.
        sources: of what layouts hold that the answer does not have.

    Raises:
        InputError: for a layout of today that holds no load within the limits of its model.
    """
    planned, notes = _placed_spots(answer), list[str]()
    if isinstance(today, FleetAnswer):
        running = _placed_spots(today)
    else:
        running = _running_spots(today, answer, sources)
    loads = {model.name: model.load.get(answer.busiest_period, 0.0) for model in answer.models}
    devices = _serving_devices(answer, notes)

    def lay_out(spots: Sequence[Spot]) -> Board:
        first, last = ([end.get(spot, 0) for spot in spots] for end in (running, planned))
        return Board(spots, first, last, devices, loads)

    spots, lacking = list(dict.fromkeys([*planned, *running])), dict[str, float]()
    board = lay_out(spots)
    for model in board.floors:
        load, today_holds = loads.get(model, 0.0), board.capacity(model, board.first)
        if 0 < today_holds < load * (1 - 1e-9):
            notes.append(f"{model} holds {today_holds:g} of its load of {load:g} today.")
    path = find_order(board, detours=False)
    if path is None:
        roomy = lay_out([*spots, *_spots_elsewhere(spots, answer.request)])
        if path := find_order(roomy, detours=True):
            board = roomy
        else:
            lacking, path = find_lacking(board)
            board = board.with_more(lacking)
            listed = ", ".join(f"{count:g} in {pool}" for pool, count in lacking.items())
            notes.append(f"No order was found that keeps every load; devices lacking: {listed}.")
    steps = tuple(_write_steps(board, path, answer))
    notes += _remark_sizes(board, path)
    return Moves(steps, lacking, _total_seconds(steps), tuple(notes))


def _remark_sizes(board: Board, path: Sequence[Counts]) -> Iterator[str]:
    """Say where replicas of several sizes share nodes, which devices by pool do not tell."""
    sizes: dict[str, set[float]] = defaultdict(set)
    for k, spot in enumerate(board.spots):
        if not spot.slice and any(counts[k] for counts in path):
            sizes[spot.pool].add(spot.devices)
    for pool, devices in sizes.items():
        if len(devices) > 1:
            yield f"In {pool} a start may find its devices on several nodes: move a smaller one."


def estimate_start(spot: Spot, *, rented: bool) -> float | None:
    """Return the seconds of a replica's cold start, as its request finds it; None without one.

    A machine of one's own is there; a rented one is new.
    """
    if not spot.request:
        return None
    request = PlanRequest.parse(dict(spot.request))
    if not rented and request.options.start == Start():
        options = request.options.model_copy(update={"start": Start(node="ready")})
        request = request.model_copy(update={"options": options})
    return start_of(*plan_candidate(request))[0].seconds


def _total_seconds(steps: Sequence[Step]) -> float | None:
    """Seconds of the longest start of each wave together; None where one is not known."""
    longest: dict[int, float] = defaultdict(float)
    for step in steps:
        if step.kind == "start":
            if step.seconds is None:
                return None
            longest[step.wave] = max(longest[step.wave], step.seconds)
    return sum(longest.values())


# what runs where


def _placed_spots(answer: FleetAnswer) -> dict[Spot, int]:
    """Spots of an answer with their replicas in the busiest period."""
    spots: dict[Spot, int] = defaultdict(int)
    for model in answer.models:
        for place in model.placements:
            if replicas := place.replicas.get(answer.busiest_period, 0):
                spots[_spot_of(model.name, place, answer)] += replicas
    return spots


def _spot_of(model: str, place: Placement, answer: FleetAnswer) -> Spot:
    return Spot(
        model=model,
        pool=place.pool,
        layout=_spot_words(place),
        slice=place.slice,
        capacity=place.capacity_each,
        devices=place.devices_each * (_awake_share(place.pool, answer) if place.shared else 1.0),
        launch=json.dumps(dict(place.candidate), sort_keys=True),
        request=place.request,
    )


def _spot_words(place: Placement) -> str:
    """A layout with its slice and engine, as people read it."""
    title = engine(place.engine).title if place.engine in engine_names() else place.engine
    return f"{place.layout}{f' on {place.slice}' if place.slice else ''}, {title}"


def _awake_share(pool: str, answer: FleetAnswer) -> float:
    """Devices of a pool that sleeping models take, over what each would take alone."""
    period, devices = answer.busiest_period, {True: 0.0, False: 0.0}
    for model in answer.models:
        for place in model.placements:
            if place.pool == pool:
                devices[place.shared] += place.replicas.get(period, 0) * place.devices_each
    used = {use.name: use.used.get(period, 0.0) for use in answer.pools}.get(pool, 0.0)
    return min(max(used - devices[False], 0.0) / devices[True], 1.0) if devices[True] else 1.0


def _running_spots(
    today: Sequence[Today], answer: FleetAnswer, sources: Sources
) -> dict[Spot, int]:
    """Spots of the replicas that run: as the answer has them there, or as they are estimated."""
    spots: dict[Spot, int] = defaultdict(int)
    placed = {model.name: model.placements for model in answer.models}
    for k, part in enumerate(today):
        layout = part.candidate.model_dump(exclude_none=True) if part.candidate else {}
        alike = [
            place
            for place in placed.get(part.model, ())
            if place.pool == part.pool
            and part.slice in (None, place.slice)
            and layout.items() <= place.candidate.items()
        ]
        if alike:
            place = max(alike, key=lambda place: place.most_replicas)
            spot = _spot_of(part.model, place, answer)
        else:
            spot = _estimate_spot(part, f"today.{k}", answer.request, sources)
        spots[spot] += part.replicas
    return spots


def _estimate_spot(today: Today, field: str, request: FleetRequest, sources: Sources) -> Spot:
    """A spot of today that the answer does not have: of what may run there, what holds most.

    Raises:
        InputError: where nothing holds any load within the limits of its model.
    """
    [model] = [model for model in request.models if model.name == today.model]
    [pool] = [pool for pool in resolve_pools(request) if pool.pool.name == today.pool]
    parts = {part.name: part for part in list_slices(pool.profile.name)}
    if today.slice and today.slice not in parts:
        message, hint = unknown("slice", today.slice, list(parts))
        raise InputError(message, field=f"{field}.slice", hint=hint)
    part = parts.get(today.slice or "")
    columns_there = make_columns(
        model.model_copy(update={"candidate": today.candidate or model.candidate}),
        part.device if part else pool.pool.device,
        1 if part else pool.per_node,
        1 if part else min(pool.pool.nodes, MOST_NODES),
        top_load=max(model.peak, 1.0),
        sources=sources,
    )
    if not columns_there.columns:
        raise InputError(
            f"{model.name} runs on {today.pool} with a layout that does not hold its limits: "
            f"{columns_there.reason}.",
            field=f"{field}.candidate",
            hint="Leave its candidate out, or state what runs.",
        )
    best = max(columns_there.columns, key=lambda column: column.capacity / column.devices)
    layout = today.candidate.model_dump(exclude_none=True) if today.candidate else {}
    words = split_name({**dict.fromkeys(_DEGREES, 1), **layout}) if layout else "as today"
    devices, launch = part.share if part else float(best.devices), json.dumps(layout)
    return Spot(model.name, today.pool, words, today.slice, best.capacity, devices, launch)


def _spots_elsewhere(spots: Sequence[Spot], request: FleetRequest) -> list[Spot]:
    """The same layouts in other pools of the same device that may serve the model."""
    pools = {pool.name: pool for pool in request.pools}
    rules = {model.name: model.where for model in request.models}
    copies = [
        replace(spot, pool=pool.name)
        for spot in spots
        if spot.pool in pools and (rule := rules.get(spot.model))
        for pool in request.pools
        if pool.device == pools[spot.pool].device
        and (not spot.slice or {spot.slice, "any"} & {*pool.slices})
        and (not rule.pools or pool.name in rule.pools)
        and (not rule.regions or pool.region in rule.regions)
        and (not rule.on_premises or pool.stands_on_premises)
    ]
    return [copy for copy in dict.fromkeys(copies) if copy not in spots]


def _serving_devices(answer: FleetAnswer, notes: list[str]) -> dict[str, float]:
    """Devices of each pool without those of jobs that may not be preempted."""
    devices = {pool.name: float(pool.devices) for pool in answer.pools}
    for job in answer.jobs:
        for place in () if job.preemptible else job.placements:
            devices[place.pool] = max(devices.get(place.pool, 0.0) - place.devices, 0.0)
            notes.append(f"{job.name} keeps its devices in {place.pool}.")
    return devices


# steps


def _write_steps(board: Board, path: Sequence[Counts], answer: FleetAnswer) -> Iterator[Step]:
    """Steps of a path: what starts before anything stops is one wave, and so is what stops then."""
    wave, pools = 0, sorted({spot.pool for spot in board.spots})
    for starts, moves in groupby(pairwise(path), key=lambda pair: sum(pair[0]) < sum(pair[1])):
        pairs = list(moves)
        counts, after, steps = pairs[0][0], pairs[-1][1], list[Step]()
        cuts = [s for pool in pools if (s := _cut_step(board, pool, counts, after)).devices]
        for k, count in enumerate(after):
            if change := count - counts[k]:
                counts = (*counts[:k], count, *counts[k + 1 :])
                steps.append(_move_step(board, k, change, counts, answer))
        for group in (cuts, steps) if starts else (steps, cuts):
            wave += bool(group)
            yield from (replace(step, wave=wave) for step in group)
    for model in answer.models:
        weights: dict[str, float] = defaultdict(float)
        for place in model.placements:
            weights[f"{place.pool} · {_spot_words(place)}"] += place.weight
        reached = _weights(board, model.name, path[-1])
        if any(abs(share - reached.get(name, 0.0)) > 1e-3 for name, share in weights.items()):
            listed = ", ".join(f"{100 * share:.3g} % to {name}" for name, share in weights.items())
            text = f"Give {model.name} the plan's weights: {listed}."
            yield Step(wave + 1, "weights", None, model.name, 0, 0.0, text, dict(weights))


def _move_step(board: Board, k: int, change: int, counts: Counts, answer: FleetAnswer) -> Step:
    """The start or stop of replicas of a spot that leads to these counts."""
    spot, first, last = board.spots[k], board.first[k], board.last[k]
    needed = change * (last - first) > 0 and min(first, last) <= counts[k] <= max(first, last)
    replicas = f"{abs(change)} replica{'s' if abs(change) > 1 else ''} of {spot.model}"
    place, seconds = f"in {spot.pool} ({spot.layout})", None
    text = f"Take {replicas} {place} out of the router, let requests end, and stop."
    if change > 0:
        place += "" if needed else " for a while"
        text = f"Start {replicas} {place}, and send requests once they answer."
        seconds = estimate_start(spot, rented=answer.request.pool(spot.pool).is_rented)
    return Step(
        wave=0,
        kind="start" if change > 0 else "stop",
        pool=spot.pool,
        model=spot.model,
        replicas=abs(change),
        devices=abs(change) * spot.devices,
        text=text,
        weights=_weights(board, spot.model, counts),
        seconds=seconds,
        temporary=not needed,
    )


def _cut_step(board: Board, pool: str, counts: Counts, after: Counts) -> Step:
    """The devices of a pool that are cut for slices that start, or are whole after others end."""
    change = board.cut(pool, after) - board.cut(pool, counts)
    devices = f"{abs(change)} device{'s' if abs(change) > 1 else ''} of {pool}"
    if change <= 0:
        return Step(0, "uncut", pool, None, 0, -change, f"Make {devices} whole again.", {})
    changes = zip(board.spots, counts, after, strict=True)
    names = {spot.slice for spot, a, b in changes if spot.pool == pool and spot.slice and a < b}
    text = f"Cut {devices} for slices {', '.join(sorted(names))}."
    return Step(0, "cut", pool, None, 0, change, text, {})


def _weights(board: Board, model: str, counts: Counts) -> dict[str, float]:
    """Shares of requests by capacity, so that no replica has more than it holds."""
    shares: dict[str, float] = defaultdict(float)
    for spot, count in zip(board.spots, counts, strict=True):
        if spot.model == model and count:
            shares[f"{spot.pool} · {spot.layout}"] += spot.capacity * count
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()} if total else {}
