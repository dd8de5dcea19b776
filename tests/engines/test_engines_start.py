"""What a plan calls feasible can start: the rules of the search against the launches."""

import random
from collections import Counter

import numpy as np

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.serving.groups import _packed
from recipe_core.launch.serving.start import launch
from recipe_core.recipe import deployment_of, make_recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.search.plans import estimate_batch, plan
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.verdict import check_request
from recipe_core.space import placement
from recipe_core.space.rules import place_rules, refusals
from tests.conftest import make_request
from tests.fixtures.deployments import EMBEDDING
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

MODELS = (
    *("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-30B-A3B"),
    *("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"),
)
DEVICES = {
    "cuda": ("h100-sxm", "b200-sxm", "gb200", "l40s"),
    "rocm": ("mi300x", "mi355x"),
    "cpu": ("cpu",),
    "xpu": ("arc-pro-b60",),
    "metal": ("apple-m4-max-128gb",),
}
ALONE = {"cpu", "apple-m4-max-128gb"}
SIZES = ((1, 1), (6, 1), (8, 1), (5, 2), (3, 3), (4, 2), (8, 2), (8, 3), (7, 3))
TOP = 20


def asked(draw):
    """A random request of one engine."""
    name = draw.choice(engine_names())
    device = draw.choice([d for runtime in engine(name).runtimes for d in DEVICES[runtime]])
    per_node, nodes = (1, 1) if device in ALONE else draw.choice(SIZES)
    per_node = 4 if device == "gb200" else per_node
    can_split = per_node * nodes <= 9 and engine(name).split.disaggregated
    options = {
        "engines": [name],
        "weight_dtypes": draw.choice((["auto"], ["auto", "fp8"], ["fp16"])),
        "kv_dtypes": draw.choice((["auto"], ["auto", "fp8"], ["bf16", "fp16"])),
        "disaggregated": can_split and draw.random() < 0.3,
    }
    model = draw.choice(MODELS if "generate" in engine(name).tasks else EMBEDDING)
    workload = {"concurrency": draw.choice((4, 64, 400))}
    return make_request(model, device, per_node, nodes, options=options, workload=workload)


@over("seed", range(12), share=12)
def test_every_feasible_split_at_the_top_of_a_plan_starts(seed):
    draw, started = random.Random(seed), Counter()
    for _ in range(26):
        request = asked(draw)
        table = plan(request)
        for row in map(int, table.order[:TOP]):
            other = table.setting(row).needs_other_checkpoint
            assert any("Needs a checkpoint" in note for note in table.estimate(row).notes) == other
            if other:
                continue
            processes = launch(deployment_of(table, row)).processes
            placed = [(p.node, d) for p in processes for d in p.devices]
            assert len(placed) == len(set(placed)) == table.columns["gpus"][row]
            started[table.setting(row).engine.name] += 1
    assert sum(started.values()) > 20


@over("seed, count", [(0, 200), (0, 600), (1, 600), (2, 600)], share=4)
def test_a_stated_split_is_refused_with_the_words_of_its_launch(seed, count):
    """What an estimate says of a split's place is what its launch says, and an estimate without it
    is one that starts.
    """
    draw, seen = random.Random(seed), Counter()
    for _ in range(count):
        engine = draw.choice(("vllm", "vllm", "sglang", "tensorrt-llm"))
        degrees = draw.choice((1, 2, 4)), draw.randint(1, 7), draw.randint(1, 6)
        split = dict(zip(("tp", "pp", "dp"), degrees, strict=True))
        model, place = draw.choice(MODELS), draw.choice(((6, 2), (5, 3), (3, 3), (7, 2)))
        found = resolve(make_request(model, "b200-sxm", *place))
        chosen, cases = one_case(found, CandidateRequest(engine=engine, **split))
        broken = any(rule.broken[0] for rule in refusals(chosen, cases))
        if broken or chosen.needs_other_checkpoint or not chosen.cache_can_be_had:
            continue
        table = ServingPlan.of(found, chosen, cases)
        placed = [rule.say(0) for rule in place_rules(chosen, cases) if rule.broken[0]]
        assert set(placed) <= set(table.reasons(0))
        if not placed:
            assert launch(deployment_of(table, 0)).processes
            seen["starts"] += 1
            continue
        error = refusal(launch, deployment_of(table, 0), kind=NoAnswer)
        said, _, fix = placed[0].partition("; ")
        assert (error.message, error.hint) == (f"{said}.", f"{fix.capitalize()}.")
        seen["refused"] += 1
    assert min(seen["starts"], seen["refused"]) > count / 120


def test_an_estimate_a_check_and_a_recipe_say_that_a_split_finds_no_room():
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 3}
    fits, request = (
        make_request("openai/gpt-oss-120b", "h100-sxm", per_node, 2, candidate=split)
        for per_node in (8, 6)
    )
    assert estimate_batch([fits.to_json()])[0]["feasible"]
    said = (
        "3 servers of 4 devices do not fit into 2 nodes of 6; "
        "use fewer replicas, or degrees that divide the devices of a node"
    )
    answer = estimate_batch([request.to_json()])[0]
    assert (answer["feasible"], answer["reasons"]) == (False, [said])
    assert "serving" not in answer
    verdict = check_request(request)
    assert verdict["ok"] is False
    assert said in verdict["reasons"]
    error = refusal(make_recipe, request, kind=NoAnswer)
    assert "do not fit into 2 nodes of 6" in str(error)


@over("seed", range(4))
def test_what_packs_by_count_packs_one_by_one(seed):
    """The rule of the search against placing every server, for one and two kinds of servers."""
    draw, seen = random.Random(seed), Counter()
    for _ in range(1000):
        per_node, nodes = draw.randint(1, 9), draw.randint(1, 4)
        kinds = []
        for _ in range(draw.choice((1, 2))):
            over = draw.choice((1, 1, 2))
            kinds.append((draw.randint(1, 6), over * draw.randint(1, per_node), over))
        servers = [placement.Servers(*map(np.asarray, kind)) for kind in kinds]
        place = np.asarray(per_node), np.asarray(nodes)
        fits = bool(placement.fits_in_nodes(servers, *place))
        sizes = [(devices, over) for count, devices, over in kinds for _ in range(count)]
        try:
            _packed(sizes, per_node, nodes)
            packed = True
        except NoAnswer:
            packed = False
        assert fits == packed, (kinds, per_node, nodes)
        seen[fits] += 1
    assert min(seen[True], seen[False]) > 100


@over(
    "hardware, engine, degrees, kv, says",
    [
        (("h100-sxm", 4, 2), "vllm", (1, 5, 1), "auto", "= 5 devices cannot be spread evenly"),
        (("h100-sxm", 6, 2), "tensorrt-llm", (4, 1, 3), "auto", "do not fit into 2 nodes of 6"),
        (("h100-sxm", 2, 1), "tgi", (2, 1, 1), "fp16", "not support fp16 KV caches with bf16"),
    ],
)
def test_a_search_refuses_what_cannot_be_started(hardware, engine, degrees, kv, says):
    request = make_request("meta-llama/Llama-3.1-8B-Instruct", *hardware)
    changed = {"engines": (engine,), "kv_dtypes": (kv,)}
    options = request.options.model_copy(update=changed)
    table = plan(request.model_copy(update={"options": options}))
    split = dict(zip(("tp", "pp", "dp"), degrees, strict=True))
    rows = [n for n in range(len(table)) if split.items() <= table.candidate(n).items()]
    assert rows
    assert all(any(says in reason for reason in table.reasons(n)) for n in rows)
    refusal(launch, deployment_of(table, rows[0]), kind=RecipeError)
