"""Plans of moves: against a search of every state, and over answers of a fleet."""

import random
from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise

import pytest

from recipe_core.base.errors import InputError
from recipe_core.fleets import moves as moves_module
from recipe_core.fleets.answer import CutDevices, FleetAnswer, PlacedModel, Placement, PoolUse
from recipe_core.fleets.moves import plan_moves
from recipe_core.fleets.order import Board, Spot, find_lacking, find_order
from recipe_core.fleets.request import FleetRequest

SERVING = {"mode": "open", "request_rate": 1.0, "input_tokens": 500, "output_tokens": 100}


def whole_spots(models, pools, rng):
    return [
        Spot(m, p, f"TP {d}", None, rng.choice((1.0, 2.0, 3.0)) * d, d)
        for m in models
        for p in pools
        for d in [rng.choice((1, 2))]
    ]


def holds(board, counts):
    """Whether a state keeps every load within the devices, counted anew."""
    used, capacity = Counter(), Counter()
    for spot, count in zip(board.spots, counts, strict=True):
        used[spot.pool] += spot.devices * count
        capacity[spot.model] += spot.capacity * count
    within = all(used[pool] <= devices for pool, devices in board.devices.items())
    return within and all(capacity[model] >= floor for model, floor in board.floors.items())


def distance(first, last):
    return sum(abs(a - b) for a, b in zip(first, last, strict=True))


def reaches(board):
    """Whether any sequence of single starts and stops leads to the end: every state is seen."""
    seen, queue = {board.first}, deque([board.first])
    while queue:
        counts = queue.popleft()
        if counts == board.last:
            return True
        for k in range(len(counts)):
            for change in (1, -1):
                after = (*counts[:k], counts[k] + change, *counts[k + 1 :])
                if after[k] >= 0 and after not in seen and holds(board, after):
                    seen.add(after)
                    queue.append(after)
    return False


def random_board(rng):
    """Two or three models in two or three tight pools, both ends of which are valid."""
    models, pools = "abc"[: rng.choice((2, 3))], "xyz"[: rng.choice((2, 3))]
    spots = whole_spots(models, pools, rng)
    devices = {pool: rng.randint(1, 4) for pool in pools}
    ends = []
    for _ in range(2):
        counts, free = [0] * len(spots), dict(devices)
        for k in rng.sample(range(len(spots)), len(spots)) * 2:
            if free[spots[k].pool] >= spots[k].devices and rng.random() < 0.85:
                counts[k] += 1
                free[spots[k].pool] -= spots[k].devices
        ends.append(tuple(counts))
    capacities = [
        {m: sum(s.capacity * end[k] for k, s in enumerate(spots) if s.model == m) for m in models}
        for end in ends
    ]
    floors = {m: rng.choice((0.5, 1, 1)) * min(c[m] for c in capacities) for m in models}
    return Board(spots, *ends, devices, floors)


def test_an_order_is_found_where_a_search_of_every_state_finds_one():
    rng, answers = random.Random(7), []
    for _ in range(1200):
        board = random_board(rng)
        path = find_order(board, detours=False) or find_order(board, detours=True)
        assert (path is not None) == reaches(board), (board.spots, board.first, board.last)
        pairs = [*pairwise(path or ())]
        for before, after in pairs:
            assert holds(board, after)
            assert sum(before[k] != after[k] for k in range(len(after))) == 1
        needed = distance(board.first, board.last)
        kinds = {False: "longer", True: "needed"}
        is_shortest = sum(distance(*pair) for pair in pairs) == needed
        answers.append("none" if path is None else kinds[is_shortest])
    # Each kind of answer was put to the test.
    assert min(answers.count(kind) for kind in ("none", "longer", "needed")) >= 10


def test_the_devices_that_are_lacking_are_the_fewest_that_help():
    rng, seen = random.Random(3), 0
    while seen < 40:
        board = random_board(rng)
        if find_order(board, detours=True) is not None:
            continue
        seen += 1
        lacking, path = find_lacking(board)
        assert (path[0], path[-1]) == (board.first, board.last)
        more = board.with_more(lacking)
        assert all(holds(more, counts) for counts in path)
        if len(lacking) == 1:
            ((pool, count),) = lacking.items()
            assert not monotone(board.with_more({pool: count - 1}))


def monotone(board):
    """Whether moves that are needed, in any order, lead to the end."""
    seen, queue = {board.first}, [board.first]
    while queue:
        counts = queue.pop()
        for k, (a, b) in enumerate(zip(counts, board.last, strict=True)):
            after = (*counts[:k], a + (b > a) - (b < a), *counts[k + 1 :])
            if after not in seen and holds(board, after):
                seen.add(after)
                queue.append(after)
    return board.last in seen


def place(pool, replicas, capacity=1.0, devices=1.0, piece=None, weight=1.0, **changes):
    values = {
        "pool": pool,
        "device": "h100-sxm",
        "slice": piece,
        "layout": f"TP {max(round(devices), 1)}",
        "engine": "vLLM",
        "candidate": {"tp": max(round(devices), 1)},
        "request": {},
        "devices_each": devices,
        "replicas": {"all": replicas},
        "capacity_each": capacity,
        "load_each": {},
        "weight": weight,
        "figures": {},
        "confidence": 0.9,
        "watts": 0.0,
        "usd_per_hour": 0.0,
    }
    return Placement(**values | changes)


def answer_of(models, pools, today=()):
    """An answer: placements by model with its load, devices by pool."""
    request = FleetRequest.parse(
        {
            "models": [{"name": n, "model": "Qwen/Qwen3-8B", "workload": SERVING} for n in models],
            "pools": [
                {"name": n, "device": "h100-sxm", "nodes": d, "per_node": 1, "slices": ["any"]}
                for n, (d, _) in pools.items()
            ],
            "today": list(today),
        }
    )
    placed = tuple(
        PlacedModel(
            n, None, None, None, 100, "open", {"all": load}, {"all": load}, tuple(places), 0.9, 0.0
        )
        for n, (load, places) in models.items()
    )
    uses = tuple(
        PoolUse(n, "h100-sxm", "owned", None, d, 1, 1, {}, {}, 0, 0.0, None, 0.0, 0.0, None, cuts)
        for n, (d, cuts) in pools.items()
    )
    zeros = dict.fromkeys(("gap", "objective", "bound", "seconds", "usd_per_hour"), 0.0)
    zeros |= dict.fromkeys(("watts", "kg_co2_per_hour", "probability"), 0.0)
    return FleetAnswer(
        request,
        "optimal",
        optimize="money",
        models=placed,
        jobs=(),
        pools=uses,
        charges=(),
        **zeros,
    )


def today_of(model, pool, replicas, **more):
    return {"model": model, "pool": pool, "replicas": replicas, **more}


def test_a_swap_takes_a_free_device_and_says_so(monkeypatch):
    # Two models change places; the third pool has the device that lets them.
    monkeypatch.setattr(
        moves_module, "estimate_start", lambda spot, **_: 60.0 if spot.pool == "spare" else 90.0
    )
    pools = {"x": (1, ()), "y": (1, ()), "spare": (1, ())}
    ends = [{"a": (1.0, [place(a, 1)]), "b": (1.0, [place(b, 1)])} for a, b in ("xy", "yx")]
    moves = plan_moves(answer_of(ends[0], pools), answer_of(ends[1], pools))
    assert moves.is_safe
    kinds = [(step.kind, step.pool, step.temporary) for step in moves.steps]
    assert kinds[0] == ("start", "spare", True)
    assert kinds[-1] == ("stop", "spare", True)
    assert "for a while" in moves.steps[0].text
    assert sum(kind == "start" for kind, *_ in kinds) == 3
    assert [step.wave for step in moves.steps] == [1, 2, 3, 4, 5, 6]
    assert moves.seconds == 60.0 + 90.0 + 90.0
    half = {step.model: step.weights for step in moves.steps[:1]}
    assert sorted(half.popitem()[1].values()) == [0.5, 0.5]
    today = [today_of("a", "x", 1), today_of("b", "y", 1)]
    without = answer_of(ends[1], {"x": (1, ()), "y": (1, ())}, today)
    moves = plan_moves(without.request.today, without)
    assert not moves.is_safe
    assert sum(moves.lacking.values()) == 1
    assert "devices lacking: 1 in" in moves.notes[-1]
    assert [step.kind for step in moves.steps] == ["start", "stop", "start", "stop"]


def test_slices_are_cut_before_they_start_and_devices_are_whole_again():
    today = [today_of("a", "x", 2, candidate={"tp": 1}), today_of("b", "x", 7, slice="1g.10gb")]
    sliced = place("x", 14, 0.25, 1 / 7, "1g.10gb")
    cuts = (CutDevices(2, {"1g.10gb": 7}, {"1g.10gb": 14}),)
    answer = answer_of({"a": (1.0, [place("x", 1)]), "b": (3.0, [sliced])}, {"x": (3, cuts)}, today)
    moves = plan_moves(answer.request.today, answer)
    assert [step.kind for step in moves.steps] == ["stop", "cut", "start"]
    assert (moves.steps[1].devices, moves.steps[2].replicas) == (1, 7)
    assert moves.notes == ("b holds 1.75 of its load of 3 today.",)
    back = answer_of(
        {"a": (1.0, [place("x", 2)]), "b": (1.0, [replace(sliced, replicas={"all": 7})])},
        {"x": (3, cuts)},
    )
    moves = plan_moves(answer, back)
    assert [step.kind for step in moves.steps] == ["stop", "uncut", "start"]
    # what runs today on slices that the answer has none of is estimated as on a slice
    today = [today_of("a", "x", 2, slice="3g.40gb")]
    whole = answer_of({"a": (1.0, [place("x", 1)])}, {"x": (2, ())}, today)
    moves = plan_moves(whole.request.today, whole)
    assert [step.kind for step in moves.steps] == ["start", "stop", "uncut"]
    assert moves.steps[1].devices == 1


def test_mixed_slices_take_no_more_devices_than_the_answer_cuts():
    cuts = (CutDevices(1, {"3g.40gb": 1, "1g.10gb": 4}, {"3g.40gb": 1, "1g.10gb": 4}),)
    places = {
        "a": (1.0, [place("x", 1, 1.0, 3 / 7, "3g.40gb")]),
        "b": (1.0, [place("x", 4, 0.25, 1 / 7, "1g.10gb")]),
    }
    moves = plan_moves((), answer_of(places, {"x": (1, cuts)}))
    assert moves.is_safe
    steps = [(step.wave, step.kind) for step in moves.steps]
    assert steps == [(1, "cut"), (2, "start"), (2, "start")]
    assert moves.steps[0].text == "Cut 1 device of x for slices 1g.10gb, 3g.40gb."


def test_weights_of_the_plan_come_last_and_unknown_layouts_are_refused():
    places = {"a": (1.0, [place("x", 1, weight=0.7), place("y", 1, weight=0.3)])}
    answer = answer_of(places, {"x": (1, ()), "y": (1, ())}, [today_of("a", "x", 1)])
    moves = plan_moves(answer.request.today, answer)
    assert [step.kind for step in moves.steps] == ["start", "weights"]
    assert [*moves.steps[-1].weights.values()] == [0.7, 0.3]
    assert moves.to_json()["steps"][1]["text"].startswith("Give a the plan's weights: 70 % to")
    # What runs and is judged anew stays; what is launched otherwise does not.
    again = [place("x", 1, 1.2, weight=0.5), place("y", 1, 0.9, weight=0.5)]
    sure = answer_of({"a": (1.0, again)}, {"x": (1, ()), "y": (1, ())})
    assert [step.kind for step in plan_moves(answer, sure).steps] == ["weights"]
    again[0] = replace(again[0], candidate={"tp": 1, "max_num_seqs": 64})
    changed = answer_of({"a": (1.0, again)}, {"x": (2, ()), "y": (1, ())})
    assert [step.kind for step in plan_moves(answer, changed).steps][:2] == ["start", "stop"]
    for wrong, field in (({"candidate": {"tp": 2}}, "candidate"), ({"slice": "9g.1gb"}, "slice")):
        odd = answer_of(places, {"x": (1, ()), "y": (1, ())}, [today_of("a", "x", 1, **wrong)])
        with pytest.raises(InputError) as error:
            plan_moves(odd.request.today, odd)
        assert error.value.field == f"today.0.{field}"


def test_starts_take_the_time_of_their_cold_start():
    request = {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "h100-sxm", "per_node": 1},
        "workload": SERVING,
        "candidate": {"engine": "vllm", "tp": 1},
    }
    moves = []
    for term in ("owned", "on-demand"):
        places = {"a": (1.0, [place("x", 1, request=request)])}
        answer = answer_of(places, {"x": (1, ())})
        fleet = answer.request.to_json()
        fleet["pools"][0]["term"] = term
        answer = replace(answer, request=FleetRequest.parse(fleet))
        moves.append(plan_moves((), answer))
    ready, rented = (move.seconds for move in moves)
    # A rented machine is provisioned and pulls the image first.
    assert 20 < ready < rented - 60
    assert moves[0].steps[0].seconds == ready


def test_a_large_fleet_has_an_order_soon():
    rng = random.Random(1)
    pools = {f"p{k}": (40, ()) for k in range(20)}
    ends = []
    for _ in range(2):
        free = dict.fromkeys(pools, 40)
        models = {}
        for m in range(50):
            places = []
            for pool in rng.sample(sorted(pools), 2):
                count = rng.randint(2, 5)
                if free[pool] >= 2 * count + 2:
                    free[pool] -= 2 * count
                    places.append(place(pool, count, 1.0, 2.0))
            models[f"m{m}"] = (0.8 * sum(p.most_replicas for p in places), places)
        ends.append(answer_of(models, pools))
    moves = plan_moves(*ends)
    assert moves.is_safe
    assert len(moves.steps) > 100
