"""How a model is cut over devices: all the splits there are, and why some of them cannot run.

``tp × pp × dp`` devices: tensor parallel ranks within pipeline stages within replicas. ``ep`` counts the ranks that share the
experts (within tp × dp); with ep > 1 dp is data-parallel attention, otherwise dp are replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.hardware.cluster import no_kernels
from recipe_core.model.spec import CompressedAttention, GroupedAttention, LatentAttention, MoeMlp
from recipe_core.space import placement
from recipe_core.space.refusal import Refusal
from recipe_core.space.serving import Cases, Setting, no_such_cache

ExpertSharing = Literal["all-ranks", "divisors", "none"]


@lru_cache(64)
def enumerate_splits(
    devices: int, *, shares_experts: ExpertSharing, kv_heads: int | None = None
) -> Mapping[str, Int]:
    """Every tp × pp × dp of at most ``devices`` ranks, also with experts shared by all tp × dp ranks, or by each divisor of them.

    With ``kv_heads`` also each tp that repeats KV heads with its cache shared by 2, 4, … of the ranks that would hold the same (cp).
    Degrees are not restricted to powers of two: what a model's heads or layers do not allow is refused with the reason. The columns are
    kept between calls and cannot be written to.
    """
    grid = [
        (tp, pp, dp)
        for tp in _upto(devices)
        for pp in _upto(devices // tp)
        for dp in _upto(devices // (tp * pp))
    ]
    rows = [
        (tp, pp, dp, ep, cp)
        for tp, pp, dp in grid
        for ep in _shared_by(tp * dp, shares_experts)
        for cp in (_halvings(tp // kv_heads) if kv_heads and tp % kv_heads == 0 else (1,))
    ]
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    table.setflags(write=False)
    return MappingProxyType(dict(zip(("tp", "pp", "dp", "ep", "cp"), table.T, strict=True)))


def _shared_by(ranks: int, way: ExpertSharing) -> set[int]:
    """How many of the ranks can share the experts, 1 for none of them."""
    if way == "divisors":
        return {n for n in range(1, ranks + 1) if ranks % n == 0}
    return {1, ranks} if way == "all-ranks" else {1}


def _halvings(ranks: int) -> list[int]:
    """1, 2, 4, … while they divide the ranks."""
    return [1 << k for k in range(ranks.bit_length()) if ranks % (1 << k) == 0]


def _upto(n: int) -> range:
    return range(1, n + 1)


def refusals(setting: Setting, cases: Cases) -> list[Refusal]:
    """Every rule that a split can break before memory is looked at."""
    return [
        *_device_rules(setting, cases),
        *_head_rules(setting, cases),
        *_width_rules(setting, cases),
        *_engine_rules(setting, cases),
    ]


def search_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that run under any load, but that a search need not look at: a shorter pipeline does the same."""
    layers = len(setting.model.layers)
    fullest = np.ceil(layers / cases.pp)
    enough = np.ceil(layers / fullest).astype(np.int64)
    return [
        Refusal(
            "idle-stages",
            (cases.pp <= layers) & (cases.pp > enough),
            lambda i: (
                f"{layers} layers over {cases.pp[i]} stages are {fullest[i]:.0f} in the fullest, as over {enough[i]} stages"
            ),
        )
    ]


def place_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits whose servers find no room in the nodes: the launch places them by the same predicates, and says the same."""
    kinds = [
        _servers(setting, cases),
        *([_servers(setting, cases.prefill_pool)] if cases.disaggregated.any() else []),
    ]
    there = cases.devices <= cases.per_node * cases.nodes
    spread = np.all([(kind.nodes > 0) | (kind.devices == 0) for kind in kinds], axis=0)
    sizes = [(kind.count, kind.devices) for kind in kinds]
    return [
        Refusal(
            "uneven-nodes",
            there & ~spread,
            lambda i: f"{_uneven(cases, kinds, i)}; {placement.UNEVEN_FIX}",
        ),
        Refusal(
            "packing",
            there & spread & ~placement.fits_in_nodes(kinds, cases.per_node, cases.nodes),
            lambda i: (
                f"{placement.unpacked([(int(n[i]), int(of[i])) for n, of in sizes], int(cases.per_node[i]), int(cases.nodes[i]))}; "
                f"{placement.UNPACKED_FIX}"
            ),
        ),
    ]


def start_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that a search looks past, because they could not be placed, or their engine cannot be asked for their cache.

    The cache of an exact candidate is its own matter: somebody may have started it with other activations.
    """
    asked = Refusal(
        "cache-dtype",
        _everywhere(cases, not setting.cache_can_be_had),
        lambda i: no_such_cache(setting),
    )
    return [*place_rules(setting, cases), asked]


def _servers(setting: Setting, cases: Cases) -> placement.Servers:
    degrees = (cases.tp, cases.pp, cases.dp, cases.ep)
    return placement.servers(
        setting.engine.split,
        setting.model.is_moe,
        degrees,
        cases.copies,
        cases.per_node,
        cases.nodes,
    )


def _uneven(cases: Cases, kinds: Sequence[placement.Servers], i: int) -> str:
    pool = cases if kinds[0].nodes[i] == 0 else cases.prefill_pool
    return placement.uneven(
        int(pool.tp[i]), int(pool.pp[i]), int(pool.dp[i]), int(pool.per_node[i])
    )


def load_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that run, but that a search need not look at under their load: fewer replicas do the same."""
    counted = setting.mode in ("closed", "static")
    idle = np.where(
        cases.disaggregated | cases.shares_experts | (not counted), 0.0, cases.replicas - cases.load
    )
    return [
        Refusal(
            "idle-replicas",
            idle > 0,
            lambda i: (
                f"{idle[i]:.0f} of {cases.replicas[i]} replicas have nothing to do with {cases.load[i]:.0f} requests at once"
            ),
        )
    ]


def _everywhere(cases: Cases, broken: bool) -> Bool:
    return np.full(len(cases), broken)


def _device_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    device, engine = setting.cluster.device, setting.engine
    there = cases.per_node * cases.nodes
    yield Refusal(
        "devices",
        cases.devices > there,
        lambda i: f"{_product(cases, i)} = {cases.devices[i]} devices; there are {there[i]}",
    )
    yield Refusal(
        "runtime",
        _everywhere(cases, device.runtime not in engine.runtimes),
        lambda i: (
            f"{engine.title} {engine.version} does not run on {device.runtime} ({device.name}); it runs on {', '.join(engine.runtimes)}"
        ),
    )
    usable = setting.weight_dtype in device.weight_dtypes
    yield Refusal(
        "weight-dtype",
        _everywhere(cases, not usable),
        lambda i: (
            f"no kernels for {setting.weight_dtype} weights on {device.name}; it runs {', '.join(device.weight_dtypes)}"
        ),
    )
    quantization = setting.model.quantization
    writer = (
        quantization.scheme.split("/")[0]
        if quantization and quantization.dtype == setting.weight_dtype
        else ""
    )
    none = no_kernels(
        engine.wraps or engine.name, device.architecture, setting.weight_dtype, writer
    )
    what = f"{setting.weight_dtype} weights" + (f" of {writer}" if none and none.encoding else "")
    why = f": {none.note}" if none and none.note else ""
    yield Refusal(
        "engine-weights",
        _everywhere(cases, none is not None),
        lambda i: f"{engine.title} has no kernels for {what} on {device.name}{why}",
    )
    cacheable = setting.kv_dtype in device.kv_dtypes and setting.kv_dtype in engine.kv_dtypes
    both = [dtype for dtype in device.kv_dtypes if dtype in engine.kv_dtypes]
    yield Refusal(
        "kv-dtype",
        _everywhere(cases, not cacheable),
        lambda i: (
            f"{engine.title} on {device.name} keeps no {setting.kv_dtype} cache; it keeps {', '.join(both) or 'none'}"
        ),
    )


def _product(cases: Cases, i: int) -> str:
    """The degrees that make a case's number of devices."""
    one = f"tp({cases.tp[i]}) × pp({cases.pp[i]}) × dp({cases.dp[i]})"
    copies = f" × {cases.copies[i]} replicas" if cases.copies[i] > 1 else ""
    return f"{one}{copies}" + (
        f" + a prefill pool of {cases.prefill_devices[i]}" if cases.disaggregated[i] else ""
    )


def _head_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    model = setting.model
    for heads, kv_heads in sorted(
        {(a.heads, a.kv_heads) for layer, _ in model.kinds if (a := layer.attention) is not None}
    ):
        yield Refusal(
            "heads",
            heads % cases.tp != 0,
            lambda i, heads=heads: f"{heads} attention heads do not divide over tp {cases.tp[i]}",  # type: ignore[misc]
        )
        uneven = (kv_heads % cases.tp != 0) & (cases.tp % kv_heads != 0)
        yield Refusal(
            "kv-heads",
            uneven & (heads % cases.tp == 0),
            lambda i, kv=kv_heads: (
                f"{kv} KV heads neither divide over tp {cases.tp[i]} nor repeat evenly on it"
            ),  # type: ignore[misc]
        )
    groups = min(
        (
            a.o_groups
            for layer, _ in model.kinds
            if isinstance(a := layer.attention, CompressedAttention)
        ),
        default=None,
    )
    if groups:
        yield Refusal(
            "output-groups",
            groups % cases.tp != 0,
            lambda i: f"{groups} output groups do not divide over tp {cases.tp[i]}",
        )
    layers = len(model.layers)
    yield Refusal(
        "layers",
        cases.pp > layers,
        lambda i: f"{layers} layers do not fill {cases.pp[i]} pipeline stages",
    )
    yield Refusal(
        "context",
        (cases.max_context > model.max_context) & setting.engine.split.enforces_context,
        lambda i: (
            f"requests of {cases.max_context[i]:,.0f} tokens exceed the model's context of {model.max_context:,}"
        ),
    )


def _shared_caches(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Ranks may share the cache of a KV head that each of them would hold whole; windows, states and compressed caches are not cut."""
    several = cases.cp > 1
    if not setting.engine.split.context:
        yield Refusal(
            "no-context",
            several,
            lambda i: (
                f"{title} does not share caches between ranks; cp must be 1, not {cases.cp[i]}"
            ),
        )
    mixers = [a for layer, _ in setting.model.kinds if (a := layer.attention) is not None]
    whole = all(
        isinstance(a, GroupedAttention | LatentAttention) and a.window is None for a in mixers
    )
    yield Refusal(
        "cp-cache",
        several & (not whole),
        lambda i: "only caches of full attention are shared between ranks; cp must be 1",
    )
    heads = max((a.kv_heads for a in mixers), default=1)
    copies = np.maximum(cases.tp // heads, 1)
    yield Refusal(
        "cp-divides",
        several & whole & ((cases.tp % heads != 0) | (copies % cases.cp != 0)),
        lambda i: (
            f"cp {cases.cp[i]} does not divide the {copies[i]} ranks that hold each of {heads} KV heads at tp {cases.tp[i]}"
        ),
    )


def _width_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    """Feed-forward widths must divide, and under block-quantised weights each share must be whole blocks."""
    block = (
        setting.model.quantization.block
        if setting.model.quantization and setting.weight_dtype == setting.model.quantization.dtype
        else None
    )
    for name, width, cut in _widths(setting, cases):
        share = width / cases.tp
        uneven = cut & (width % cases.tp != 0)
        yield Refusal(
            "width",
            uneven,
            lambda i, n=name, w=width: f"the {n} width {w} does not divide over tp {cases.tp[i]}",  # type: ignore[misc]
        )
        if block:
            advice = (
                "; share the experts (ep = tp × dp) instead of cutting them"
                if name == "expert"
                else ""
            )
            yield Refusal(
                "block",
                cut & ~uneven & (share % block != 0),
                lambda i, n=name, w=width, a=advice: (  # type: ignore[misc]
                    f"{setting.weight_dtype} blocks of {block} do not divide the {n} share {w}/{cases.tp[i]} = {w / cases.tp[i]:g}{a}"
                ),
            )


def _widths(setting: Setting, cases: Cases) -> list[tuple[str, int, Bool]]:
    """Every feed-forward width with where tensor parallelism cuts it."""
    always = _everywhere(cases, True)
    found: dict[tuple[str, int], Bool] = {}
    for layer, _ in setting.model.kinds:
        if isinstance(layer.mlp, MoeMlp):
            found["expert", layer.mlp.intermediate] = ~cases.shares_experts
            if layer.mlp.shared_intermediate:
                found["shared expert", layer.mlp.shared_intermediate] = always
        elif layer.mlp is not None:
            found["feed-forward", layer.mlp.intermediate] = always
    return [(name, width, cut) for (name, width), cut in found.items()]


def _drafts(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """What verifying drafts does not go with."""
    split, drafts = setting.engine.split, cases.draft_tokens > 0
    if not split.drafts_in_pipeline:
        stages = np.maximum(cases.pp, cases.prefill_pp)
        yield Refusal(
            "pipelined-drafts",
            drafts & (stages > 1),
            lambda i: f"{title} verifies no drafts in {stages[i]} pipeline stages",
        )
    if not split.lookups_in_attention_dp:
        within = cases.shares_experts & (cases.dp > 1) | (cases.prefill_ep > 1) & (
            cases.prefill_dp > 1
        )
        yield Refusal(
            "looked-up-drafts",
            drafts & (cases.draft_layers == 0) & within,
            lambda i: f"{title} looks up no drafts beside ep and dp",
        )


def _attention_ranks(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Attention that is data-parallel within a server: some engines cut it no further, some have none."""
    within = cases.shares_experts & (cases.dp > 1)
    if setting.engine.split.attention_dp == "none":
        yield Refusal(
            "no-attention-dp",
            within,
            lambda i: (
                f"{title} runs one scheduler a server; dp beside ep must be 1, not {cases.dp[i]}"
            ),
        )
    elif setting.engine.split.attention_dp == "whole":
        yield Refusal(
            "attention-dp",
            within & (cases.tp > 1),
            lambda i: (
                f"{title} cuts attention over all ranks or none; tp {cases.tp[i]} × dp {cases.dp[i]} is neither"
            ),
        )


def _engine_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    engine, model = setting.engine, setting.model
    split, title = engine.split, f"{engine.title} {engine.version}"
    if not split.tensor:
        yield Refusal(
            "no-tensor",
            cases.tp > 1,
            lambda i: f"{title} has no tensor parallelism; tp must be 1, not {cases.tp[i]}",
        )
    if not split.pipeline:
        yield Refusal(
            "no-pipeline",
            cases.pp > 1,
            lambda i: f"{title} has no pipeline parallelism; pp must be 1, not {cases.pp[i]}",
        )
    if not split.disaggregated:
        yield Refusal(
            "no-pools",
            cases.disaggregated,
            lambda i: f"{title} does not hand caches from a prefill pool to another",
        )
    if not split.speculative:
        yield Refusal(
            "no-drafts",
            cases.draft_tokens > 0,
            lambda i: f"{title} does not verify drafts; leave speculative out",
        )
    yield from _drafts(setting, cases, title)
    if split.over_nodes == "never":
        each = cases.tp * cases.pp
        yield Refusal(
            "one-node",
            each > cases.per_node,
            lambda i: f"a server of {title} stays in a node: {each[i]} of {cases.per_node[i]}",
        )
    yield from _attention_ranks(setting, cases, title)
    yield from _shared_caches(setting, cases, title)
    experts = max(
        (layer.mlp.experts for layer, _ in model.kinds if isinstance(layer.mlp, MoeMlp)), default=0
    )
    yield Refusal(
        "no-experts",
        (cases.ep > 1) & (experts == 0),
        lambda i: f"ep is {cases.ep[i]} but the model has no experts to share",
    )
    ranks = cases.tp * cases.dp
    shared = cases.shares_experts & (experts > 0)
    yield Refusal(
        "experts",
        shared & (cases.ep > experts),
        lambda i: f"{experts} experts do not fill ep {cases.ep[i]} ranks",
    )
    if split.experts == "none":
        yield Refusal(
            "no-expert-parallel",
            shared,
            lambda i: f"{title} has no expert parallelism; ep must be 1",
        )
    elif split.experts == "divisors":
        yield Refusal(
            "ep-divides",
            shared & (ranks % cases.ep != 0),
            lambda i: f"ep {cases.ep[i]} does not divide tp × dp = {ranks[i]} ranks",
        )
    else:
        yield Refusal(
            "ep-ranks",
            shared & (cases.ep != ranks),
            lambda i: (
                f"{title} shares experts over all tp × dp = {ranks[i]} ranks; ep must be 1 or {ranks[i]}, not {cases.ep[i]}"
            ),
        )
