"""A plan of moves: from what runs today to a fleet's answer, without dropping a model's load.

At every moment what serves of a model holds its load, and no pool has more devices in use than it
has. Where no such order is found, the devices that are lacking are named. A model whose load is not
held today, or will not be, keeps what both hold. Devices that are cut are counted by slice, as if
replicas stood packed. Spare replicas of headroom may be in use meanwhile.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from typing import Any, Literal

from recipe_core.base.errors import InputError
from recipe_core.engines.spec import engine, engine_names
from recipe_core.fleets.answer import FleetAnswer, PlacedModel, Placement
from recipe_core.fleets.order import Board, Counts, Spot, find_lacking, find_order
from recipe_core.fleets.request import FleetRequest, Pool, Today
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.over_time import Start
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_name
from recipe_core.scaling.scenario import start_of

_DEGREES = ("tp", "pp", "dp", "ep", "cp")
CapacityOf = Callable[[str, str, Mapping[str, Any] | None], tuple[float, float]]
StartSeconds = Callable[[Spot], float | None]
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
    today: Sequence[Today] | FleetAnswer,
    answer: FleetAnswer,
    *,
    capacity_of: CapacityOf | None = None,
    start_seconds: StartSeconds | None = None,
) -> Moves:
    """Steps from what runs today to an answer.

    Args:
        today: replicas that run, such as the request's, or an answer that was put in place.
        answer: the fleet to reach, with the replicas of the busiest period.
        capacity_of: capacity and devices of a replica of a model in a pool with a layout (None: the
            best there), for layouts that the answer does not have.
        start_seconds: seconds of a start, where they are known; ``estimate_starts`` has those of
            the answer.

    Raises:
        InputError: for a replica of today whose capacity is not known.
    """
    notes: list[str] = []
    planned = _placed_spots(answer)
    if isinstance(today, FleetAnswer):
        running = _placed_spots(today)
    else:
        running = _running_spots(today, answer, capacity_of)
    spots = list(dict.fromkeys([*planned, *running]))
    board = _make_board(spots, running, planned, answer, notes)
    path, lacking = find_order(board, detours=False), dict[str, float]()
    if path is None:
        spots += _spots_elsewhere(spots, answer.request)
        roomy = _make_board(spots, running, planned, answer, [])
        if path := find_order(roomy, detours=True):
            board = roomy
    if path is None:
        lacking, path = find_lacking(board)
        listed = ", ".join(f"{count:g} in {pool}" for pool, count in lacking.items())
        notes.append(f"No order was found that keeps every load; devices lacking: {listed}.")
        board = board.with_more(lacking)
    steps = tuple(_write_steps(board, path, answer, start_seconds))
    notes += _remark_sizes(board, path)
    return Moves(steps, lacking, _total_seconds(steps), tuple(notes))


def _make_board(
    spots: Sequence[Spot],
    running: Mapping[Spot, int],
    planned: Mapping[Spot, int],
    answer: FleetAnswer,
    notes: list[str],
) -> Board:
    first, last = ([state.get(spot, 0) for spot in spots] for state in (running, planned))
    floors: dict[str, float] = {}
    board = Board(spots, first, last, _free_devices(answer, notes), floors)
    loads = {model.name: model.load.get(answer.busiest_period, 0.0) for model in answer.models}
    for model in dict.fromkeys(spot.model for spot in spots):
        load = loads.get(model, 0.0)
        today, end = (board.capacity(model, state) for state in (board.first, board.last))
        floors[model] = min(load, today, end)
        if 0 < today < load * (1 - 1e-9):
            notes.append(f"{model} holds {today:g} of its load of {load:g} today.")
    return board


def estimate_starts(answer: FleetAnswer) -> StartSeconds:
    """Return the cold start of each replica of an answer, in seconds, as its request finds it.

    A machine of one's own is there; a rented one is new.
    """
    requests = {
        _spot_of(model.name, place, {}): place.request
        for model in answer.models
        for place in model.placements
    }
    rented = {pool.name for pool in answer.request.pools if pool.is_rented}

    @cache
    def seconds(spot: Spot) -> float | None:
        if not requests.get(spot):
            return None
        request = PlanRequest.parse(requests[spot])
        if spot.pool not in rented and request.options.start == Start():
            options = request.options.model_copy(update={"start": Start(node="ready")})
            request = request.model_copy(update={"options": options})
        return start_of(*plan_candidate(request))[0].seconds

    return seconds


def _remark_sizes(board: Board, path: Sequence[Counts]) -> Iterator[str]:
    """Say where replicas of several sizes share nodes, which devices by pool do not tell."""
    sizes: dict[str, set[float]] = defaultdict(set)
    for k, spot in enumerate(board.spots):
        if not spot.slice and any(counts[k] for counts in path):
            sizes[spot.pool].add(spot.devices)
    for pool, devices in sizes.items():
        if len(devices) > 1:
            yield f"In {pool} a start may find its devices on several nodes: move a smaller one."


def _total_seconds(steps: Sequence[Step]) -> float | None:
    """Seconds of the longest start of each wave together; None where one is not known."""
    total = 0.0
    for _, wave in groupby(steps, key=lambda step: step.wave):
        times = [step.seconds for step in wave if step.kind == "start"]
        known_times = [seconds for seconds in times if seconds is not None]
        if len(known_times) < len(times):
            return None
        total += max(known_times, default=0.0)
    return total


def _placed_spots(answer: FleetAnswer) -> dict[Spot, int]:
    """Spots of an answer with their replicas in the busiest period."""
    shares, period = _shared_parts(answer), answer.busiest_period
    spots: dict[Spot, int] = defaultdict(int)
    for model in answer.models:
        for place in model.placements:
            if replicas := place.replicas.get(period, 0):
                spots[_spot_of(model.name, place, shares)] += replicas
    return spots


def _spot_of(model: str, place: Placement, shares: Mapping[str, float]) -> Spot:
    layout, launch = _spot_words(place), json.dumps(dict(place.candidate), sort_keys=True)
    devices = place.devices_each * (shares.get(place.pool, 1.0) if place.shared else 1.0)
    return Spot(model, place.pool, layout, place.slice, place.capacity_each, devices, launch)


def _spot_words(place: Placement) -> str:
    """A layout with its slice and engine, as people read it."""
    title = engine(place.engine).title if place.engine in engine_names() else place.engine
    return f"{place.layout}{f' on {place.slice}' if place.slice else ''}, {title}"


def _shared_parts(answer: FleetAnswer) -> dict[str, float]:
    """Devices in use over the sum of those that sleeping models share, by pool."""
    shared: dict[str, float] = defaultdict(float)
    alone: dict[str, float] = defaultdict(float)
    placements = [place for model in answer.models for place in model.placements]
    for place in placements:
        devices = place.replicas.get(answer.busiest_period, 0) * place.devices_each
        (shared if place.shared else alone)[place.pool] += devices
    used = {pool.name: pool.used.get(answer.busiest_period, 0.0) for pool in answer.pools}
    return {
        pool: min(max(used.get(pool, total) - alone[pool], 0.0) / total, 1.0)
        for pool, total in shared.items()
        if total
    }


def _running_spots(
    today: Sequence[Today], answer: FleetAnswer, capacity_of: CapacityOf | None
) -> dict[Spot, int]:
    """Spots of the replicas that run, known by the answer or by ``capacity_of``."""
    shares, spots = _shared_parts(answer), dict[Spot, int]()
    placed = {model.name: model.placements for model in answer.models}
    for k, part in enumerate(today):
        layout = part.candidate.model_dump(exclude_none=True) if part.candidate else None
        alike = [
            place
            for place in placed.get(part.model, ())
            if place.pool == part.pool
            and part.slice in (None, place.slice)
            and all(place.candidate.get(name) == value for name, value in (layout or {}).items())
        ]
        if alike:
            place = max(alike, key=lambda place: place.most_replicas)
            spot = _spot_of(part.model, place, shares)
        elif capacity_of is not None:
            capacity, devices = capacity_of(part.model, part.pool, layout)
            launch, words = json.dumps(layout), "as today"
            if layout:
                words = split_name({**dict.fromkeys(_DEGREES, 1), **layout})
            spot = Spot(part.model, part.pool, words, part.slice, capacity, devices, launch)
        else:
            raise InputError(
                f"{part.model} runs in {part.pool} with a layout whose capacity is not known.",
                field=f"today.{k}.candidate",
                hint="State a layout that the plan has there.",
            )
        spots[spot] = spots.get(spot, 0) + part.replicas
    return spots


def _spots_elsewhere(spots: Sequence[Spot], request: FleetRequest) -> list[Spot]:
    """The same layouts in other pools of the same device that may serve the model."""
    pools = {pool.name: pool for pool in request.pools}
    copies = {
        replace(spot, pool=pool.name): None
        for spot in spots
        for pool in pools.values()
        if spot.pool in pools and _may_stand(spot, pools[spot.pool], pool, request)
    }
    return [copy for copy in copies if copy not in set(spots)]


def _may_stand(spot: Spot, home: Pool, pool: Pool, request: FleetRequest) -> bool:
    """Return whether a replica may run in another pool: its device, its slices, data rules."""
    rule = next((model.where for model in request.models if model.name == spot.model), None)
    return (
        rule is not None
        and pool.device == home.device
        and (not spot.slice or spot.slice in pool.slices or "any" in pool.slices)
        and (not rule.pools or pool.name in rule.pools)
        and (not rule.regions or pool.region in rule.regions)
        and (not rule.on_premises or pool.stands_on_premises)
    )


def _free_devices(answer: FleetAnswer, notes: list[str]) -> dict[str, float]:
    """Devices of each pool without those of jobs that may not be preempted."""
    devices = {pool.name: float(pool.devices) for pool in answer.pools}
    for job in answer.jobs:
        for place in () if job.preemptible else job.placements:
            devices[place.pool] = max(devices.get(place.pool, 0.0) - place.devices, 0.0)
            notes.append(f"{job.name} keeps its devices in {place.pool}.")
    return devices


def _write_steps(
    board: Board, path: Sequence[Counts], answer: FleetAnswer, start_seconds: StartSeconds | None
) -> Iterator[Step]:
    """Steps of a path; starts that follow each other are one wave, and so are stops."""
    wave, kind_before = 0, ""
    for _, moves in groupby(pairwise(path), key=lambda pair: _direction(*pair)):
        pairs = list(moves)
        counts, after = pairs[0][0], pairs[-1][1]
        k, starts = _direction(counts, after)
        spot, change = board.spots[k], after[k] - counts[k]
        kind: Kind = "start" if starts else "stop"
        wave, kind_before = wave + (kind != kind_before), kind
        ends = sorted((board.first[k], board.last[k]))
        is_needed = change * (board.last[k] - board.first[k]) > 0
        temporary = not (is_needed and ends[0] <= after[k] <= ends[1])
        step = Step(
            wave=wave,
            kind=kind,
            pool=spot.pool,
            model=spot.model,
            replicas=abs(change),
            devices=abs(change) * spot.devices,
            text=_say_move(spot, change, temporary),
            weights=_weights(board, spot.model, after),
            seconds=start_seconds(spot) if start_seconds and starts else None,
            temporary=temporary,
        )
        cut = board.cut(spot.pool, after) - board.cut(spot.pool, counts)
        yield from (_cut_step(step, spot, cut), step) if cut > 0 else (step,)
        if cut < 0:
            yield _cut_step(step, spot, cut)
    for model in answer.models:
        weights, reached = _answer_weights(model), _weights(board, model.name, path[-1])
        if any(abs(share - reached.get(name, 0.0)) > 1e-3 for name, share in weights.items()):
            listed = ", ".join(f"{100 * share:.3g} % to {name}" for name, share in weights.items())
            text = f"Give {model.name} the plan's weights: {listed}."
            yield Step(wave + 1, "weights", None, model.name, 0, 0.0, text, weights)


def _direction(counts: Counts, after: Counts) -> tuple[int, bool]:
    """The spot on which a move is, and whether replicas start."""
    return next((k, b > a) for k, (a, b) in enumerate(zip(counts, after, strict=True)) if a != b)


def _say_move(spot: Spot, change: int, temporary: bool) -> str:
    replicas = f"{abs(change)} replica{'s' if abs(change) > 1 else ''} of {spot.model}"
    place = f"in {spot.pool} ({spot.layout})"
    if change > 0:
        place += " for a while" if temporary else ""
        return f"Start {replicas} {place}, and send requests once they answer."
    return f"Take {replicas} {place} out of the router, let requests end, and stop."


def _cut_step(step: Step, spot: Spot, cut: int) -> Step:
    count = f"{abs(cut)} device{'s' if abs(cut) > 1 else ''} of {spot.pool}"
    kind: Kind = "cut" if cut > 0 else "uncut"
    text = f"Cut {count} for slices {spot.slice}." if cut > 0 else f"Make {count} whole again."
    step = replace(step, kind=kind, model=None, replicas=0, weights={}, seconds=None)
    return replace(step, devices=abs(cut), text=text)


def _weights(board: Board, model: str, counts: Counts) -> dict[str, float]:
    """Shares of requests by capacity, so that no replica has more than it holds."""
    shares: dict[str, float] = defaultdict(float)
    for spot, count in zip(board.spots, counts, strict=True):
        if spot.model == model and count:
            shares[f"{spot.pool} · {spot.layout}"] += spot.capacity * count
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()} if total else {}


def _answer_weights(model: PlacedModel) -> dict[str, float]:
    weights: dict[str, float] = defaultdict(float)
    for place in model.placements:
        weights[f"{place.pool} · {_spot_words(place)}"] += place.weight
    return dict(weights)
