"""Estimates of random requests, each with seven neighbours: properties, and what looks odd.

Every estimate is held against the properties of ``estimate_properties``, every pair against the
oddities of ``estimate_oddities``; what is odd needs a reason that it finds in the estimates
themselves. Found is a property that fails, and an oddity without a reason.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.cluster import device_names, device_profile, in_nodes
from recipe_core.models.catalog import catalog_ids
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.plans import estimate_batch
from recipe_core.request.serving_workload import LOADS
from tests.nightly.attack.estimate_oddities import DATA, ODDITIES, Case, Pair, over_reason
from tests.nightly.attack.estimate_properties import PROPERTIES, Request, spec
from tests.nightly.attack.harness import Order, Tally

LOAD_RANGES = {"closed": (1, 2048), "open": (0.02, 200.0), "static": (1, 512), "offline": (1, 5000)}
LONGEST = 131_072
OVER = "memory needed exceeds what may be used"
CHUNK = 200
"""Requests, each with its neighbours, that are estimated together."""
SHOWN = 5
"""Failures that are shown of each kind."""


def draw(seed: int, index: int) -> dict[str, Request]:
    """Request ``index`` of a run and its neighbours, by what differs; "base" is the request."""
    rng = random.Random(f"{seed}/{index}")
    base = (_training if rng.random() < 0.2 else _serving)(rng)
    neighbours = DATA["neighbours"][base["workload"]["kind"]].items()
    return {"base": base, **{name: _changed(base, changes) for name, changes in neighbours}}


def _changed(base: Request, changes: dict[str, Any]) -> Request:
    """A neighbour; experts that are shared stay shared by all ranks."""
    out = deepcopy(base)
    for place, value in changes.items():
        part, _, name = place.partition(".")
        name = LOADS[base["workload"]["mode"]] if name == "load" else name
        if isinstance(value, dict):
            value = base[part][name] * value.get("times", 1) + value.get("plus", 0)
        out[part][name] = value
    if base["candidate"].get("ep", 1) > 1:
        out["candidate"]["ep"] = out["candidate"]["tp"] * out["candidate"]["dp"]
    return out


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _whole(rng: random.Random, low: int, high: int) -> int:
    return round(_log_uniform(rng, low, max(low, high)))


def _tp(rng: random.Random, model: ModelSpec, capacity: float, bytes_each: float) -> int:
    """A random degree, but seldom one whose weights cannot fit."""
    tp = rng.choice((1, 1, 2, 4, 8))
    while tp < 8 and model.parameters * bytes_each > 0.8 * capacity * tp and rng.random() < 0.9:
        tp *= 2
    return tp


def _serving(rng: random.Random) -> Request:
    name, hardware = rng.choice(catalog_ids()), in_nodes(rng.choice(device_names()), 8, 16)
    model, place = spec(name), device_profile(hardware["device"])
    runs = [known for known in engine_names() if place.runtime in engine(known).runtimes]
    engines = runs or engine_names()
    stored = 1.0 if model.weight_dtype.startswith("fp8") else 2.0
    tp = _tp(rng, model, place.usable_memory_bytes, stored)
    pp, dp = rng.choice((1, 1, 1, 2, 4)), rng.choice((1, 1, 2, 4, 8))
    ep = tp * dp if model.is_moe and rng.random() < 0.4 else 1
    candidate = {"engine": rng.choice(engines), "tp": tp, "pp": pp, "dp": dp, "ep": ep}
    if rng.random() < 0.2:
        candidate["kv_dtype"] = "fp8"
    if rng.random() < 0.1:
        candidate["max_batched_tokens"] = rng.choice((512, 2048, 8192, 32_768))
    mode = rng.choice(("closed", "closed", "open", "static", "offline"))
    longest = min(model.max_context, LONGEST) - 2
    input_tokens = _whole(rng, 1, longest - 1)
    load = _log_uniform(rng, *LOAD_RANGES[mode])
    workload = {
        "kind": "serving",
        "mode": mode,
        "input_tokens": input_tokens,
        "output_tokens": _whole(rng, 1, min(longest - input_tokens, 8192)),
        LOADS[mode]: load if mode == "open" else round(load),
    }
    if rng.random() < 0.2:
        workload["prefix_hit"] = round(rng.uniform(0, 0.95), 2)
    if rng.random() < 0.1:
        acceptance = round(rng.uniform(0.3, 0.9), 2)
        workload["speculative"] = {"tokens": rng.randint(1, 4), "acceptance": acceptance}
    return {"model": name, "hardware": hardware, "workload": workload, "candidate": candidate}


def _training(rng: random.Random) -> Request:
    name, hardware = rng.choice(catalog_ids()), in_nodes(rng.choice(device_names()), 8, 16)
    model, place = spec(name), device_profile(hardware["device"])
    dp, micro_batch = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 4))
    candidate = {
        "engine": rng.choice(list(training_data().frameworks)),
        "tp": _tp(rng, model, place.usable_memory_bytes, 4.0),
        "pp": rng.choice((1, 1, 2, 4)),
        "dp": dp,
        "micro_batch": micro_batch,
        "zero_stage": rng.choice((0, 1, 2, 3)),
        "recompute": rng.choice(("none", "selective", "full")),
    }
    workload = {
        "kind": "training",
        "method": rng.choice(("pretrain", "finetune", "lora")),
        "sequence_length": 64 * _whole(rng, 2, min(model.max_context - 1, 32_768) // 64),
        "global_batch": dp * micro_batch * rng.choice((2, 4, 8, 16, 32)),
    }
    return {"model": name, "hardware": hardware, "workload": workload, "candidate": candidate}


@dataclass
class Findings(Tally):
    """Counts of a run; what failed is seed/index and neighbour, by what failed."""

    requests: int = 0
    feasible: int = 0
    odd: Counter[str] = field(default_factory=Counter)
    explained: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failed: Counter[str] = field(default_factory=Counter)

    def hold(self, place: str, draws: dict[str, Request], cases: dict[str, Case]) -> None:
        """Properties of each case, and oddities of their pairs."""
        self.requests += len(draws)
        self.feasible += len(cases)
        for name, case in cases.items():
            for known, holds in PROPERTIES.items():
                verdict = holds(case.request, case.answer)
                self.tried[known] += verdict is not None
                if verdict is False:
                    self._fail(known, f"{place} {name}")
            self.tried[OVER] += 1
            if case.memory["total_bytes"] > case.memory["usable_bytes"]:
                self._explain(OVER, f"{place} {name}", over_reason(case))
        for oddity in ODDITIES.values():
            names = oddity.compares
            if oddity.kind == draws["base"]["workload"]["kind"] and cases.keys() >= {*names}:
                pair = Pair(*(cases[name] for name in names))
                self.tried[oddity.name] += 1
                if oddity.seen(pair):
                    where = f"{place} {' → '.join(names)}"
                    self._explain(oddity.name, where, oddity.reason_for(pair))

    def _explain(self, oddity: str, place: str, reason: str | None) -> None:
        self.odd[oddity] += 1
        if reason is None:
            self._fail(oddity, place)
        else:
            self.explained[oddity][reason] += 1

    def _fail(self, name: str, place: str) -> None:
        self.failed[name] += 1
        if self.failed[name] <= SHOWN:
            self.findings.append(f"{name}: {place}")

    def lines(self) -> list[str]:
        lines = [f"{self.requests:,} requests, {self.feasible:,} feasible estimates"]
        for name in (*PROPERTIES, OVER, *ODDITIES):
            counts = f"{self.odd[name]} odd, " if name not in PROPERTIES else ""
            counts += f"{self.failed[name]} failed"
            lines.append(f"{self.tried[name]:>8,} tried, {counts}: {name}")
            for reason, count in self.explained[name].most_common():
                lines.append(f"{'':>12}{count:>6,} {reason}")
        return lines


def attack(order: Order) -> Findings:
    """Requests at random; findings have the index that repeats each."""
    findings, seed = Findings(), order.seed
    indices = list(order.indices())
    for start in range(0, len(indices), CHUNK):
        draws = {index: draw(seed, index) for index in indices[start : start + CHUNK]}
        names = [(index, name) for index, requests in draws.items() for name in requests]
        answers = estimate_batch(draws[index][name] for index, name in names)
        cases: dict[int, dict[str, Case]] = defaultdict(dict)
        for (index, name), answer in zip(names, answers, strict=True):
            if answer.get("feasible"):
                cases[index][name] = Case(draws[index][name], answer)
        for index, requests in draws.items():
            findings.hold(f"{seed}/{index}", requests, cases[index])
    return findings
