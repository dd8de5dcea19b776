"""Rules that refuse a serving split: one `Refusal` a rule, over all cases at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from recipe_core.accuracy.technique import technique
from recipe_core.base.arrays import Bool, Int
from recipe_core.engines.spec import titles_on
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting, no_such_cache
from recipe_core.estimates.rules import placement
from recipe_core.estimates.rules.kernels import Known, kernel_support_of, untuned_support
from recipe_core.estimates.rules.kv_offload import offload_rules
from recipe_core.estimates.rules.links import link_refusals
from recipe_core.estimates.rules.refusal import Refusal, indivisible_refusal
from recipe_core.estimates.rules.widths import width_rules
from recipe_core.estimates.serving.accuracy import weight_only_technique, weights_refusal
from recipe_core.hardware.cluster import no_kernels
from recipe_core.hardware.profile import Device
from recipe_core.models.spec import CompressedAttention, GroupedAttention, LatentAttention, MoeMlp


def serving_refusals(setting: Setting, cases: Cases) -> list[Refusal]:
    """Every rule that a split can break before memory is estimated."""
    return [
        *_serving_device_rules(setting, cases),
        *_head_rules(setting, cases),
        *width_rules(setting, cases),
        *_engine_rules(setting, cases),
        *offload_rules(setting, cases),
    ]


def serving_search_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that would run, but that a search skips, as simpler ones, or formats, do more."""
    layers = len(setting.model.layers)
    fullest = np.ceil(layers / cases.pp)
    enough = np.ceil(layers / fullest).astype(np.int64)

    def sentence(i: int) -> str:
        idle = int(cases.pp[i] - enough[i])
        rest = "the last adds nothing" if idle == 1 else f"the other {idle} add nothing"
        stages = f"{cases.pp[i]} stages hold up to {fullest[i]:.0f} of {layers} layers each"
        return f"{stages}, as {enough[i]} would; {rest}"

    emulated = [format_text for _, format_text in untuned_support(setting).emulated]
    return [
        Refusal("idle-stages", (cases.pp <= layers) & (cases.pp > enough), sentence),
        Refusal(
            "emulated",
            _all_cases(cases, bool(emulated)),
            lambda i: f"{setting.engine.title} only emulates {', '.join(emulated)}",
        ),
    ]


def place_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits whose servers do not fit into the nodes, by the predicates that a launch uses too."""
    pools = _server_kinds(setting, cases)
    # Splits with more devices than available are refused as that, not for their placement.
    available = cases.devices <= cases.per_node * cases.nodes
    spread = np.all([(pool.nodes > 0) | (pool.devices == 0) for pool in pools], axis=0)

    def unpacked(i: int) -> str:
        sizes = [(int(pool.count[i]), int(pool.devices[i])) for pool in pools]
        return placement.unpacked_servers_text(sizes, int(cases.per_node[i]), int(cases.nodes[i]))

    several = cases.disaggregated | np.any([pool.devices > 1 for pool in pools], axis=0)
    return [
        *link_refusals(setting.cluster, several),
        Refusal(
            "uneven-nodes",
            available & ~spread,
            lambda i: f"{_uneven_pool_text(cases, pools, i)}; {placement.UNEVEN_FIX}",
        ),
        Refusal(
            "packing",
            available & spread & ~placement.fits_in_nodes(pools, cases.per_node, cases.nodes),
            lambda i: f"{unpacked(i)}; {placement.UNPACKED_FIX}",
        ),
    ]


def start_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that a search skips: they cannot be placed, or no flag gives them their cache format.

    An exact candidate may keep its cache format: it may run with other activations.
    """
    cache = Refusal(
        "cache-dtype",
        _all_cases(cases, not setting.cache_can_be_had),
        lambda i: no_such_cache(setting),
    )
    return [*place_rules(setting, cases), cache]


def serving_devices_rented(setting: Setting, cases: Cases) -> Int:
    """Devices that are paid for: those of whole machines, where machines are rented whole.

    A unit holds one node or several (a rack), or is a part of one, such as one device of eight.
    """
    unit = setting.cluster.unit
    if unit == 1:
        return cases.devices
    nodes = placement.nodes_needed(_server_kinds(setting, cases), cases.per_node)
    node_devices = np.where(unit >= cases.per_node, nodes * cases.per_node, 0)
    return np.asarray(-(-np.maximum(node_devices, cases.devices) // unit) * unit)


def _server_kinds(setting: Setting, cases: Cases) -> list[placement.Servers]:
    pools = [servers_of(setting, cases)]
    if cases.disaggregated.any():
        pools.append(servers_of(setting, cases.prefill_pool))
    return pools


def servers_of(setting: Setting, cases: Cases) -> placement.Servers:
    """The servers of the pool that decodes, or of the only one."""
    degrees = (cases.tp, cases.pp, cases.dp, cases.ep)
    return placement.pool_servers(
        setting.engine.split,
        setting.model.is_moe,
        degrees,
        cases.copies,
        cases.per_node,
        cases.nodes,
    )


def _uneven_pool_text(cases: Cases, pools: Sequence[placement.Servers], i: int) -> str:
    pool = cases if pools[0].nodes[i] == 0 else cases.prefill_pool
    return placement.uneven_server_text(
        int(pool.tp[i]), int(pool.pp[i]), int(pool.dp[i]), int(pool.per_node[i])
    )


def load_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that would run, but that a search skips at this load: fewer replicas do the same."""
    counted = setting.mode in ("closed", "static")
    idle = np.where(
        cases.disaggregated | cases.shares_experts | (not counted), 0.0, cases.replicas - cases.load
    )

    def sentence(i: int) -> str:
        replicas = f"{idle[i]:.0f} of {cases.replicas[i]} replicas would idle"
        plural = "" if cases.load[i] == 1 else "s"
        return f"{replicas} at {cases.load[i]:.0f} concurrent request{plural}"

    return [Refusal("idle-replicas", idle > 0, sentence)]


def _engines_there_text(device: Device) -> str:
    """Say what does run on a device, as the end of a sentence: engines, else programs of others."""
    if able := titles_on(device.runtime):
        return f"; on it run {', '.join(able)}"
    if device.driven_by:
        return f"; no engine here does; what drives it: {device.driven_by}"
    return ""


def _all_cases(cases: Cases, broken: bool) -> Bool:
    return np.full(len(cases), broken)


def _serving_device_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    device, engine = setting.cluster.device, setting.engine
    available = cases.per_node * cases.nodes
    yield Refusal(
        "devices",
        cases.devices > available,
        lambda i: (
            f"{_degrees_text(cases, i)} = {cases.devices[i]} devices; only {available[i]} available"
        ),
    )
    yield Refusal(
        "runtime",
        _all_cases(cases, device.runtime not in engine.runtimes),
        lambda i: (
            f"{engine.title} {engine.version} does not run on {device.runtime} ({device.title}); "
            f"supported: {', '.join(engine.runtimes)}{_engines_there_text(device)}"
        ),
    )
    kernel_support = kernel_support_of(setting) if device.runtime in engine.runtimes else Known()
    refused = () if setting.assumed else kernel_support.refused
    yield Refusal("engine-kernels", _all_cases(cases, bool(refused)), lambda i: "; ".join(refused))
    # An engine that says what it loads has kernels of its own, whatever the device multiplies.
    lacking = kernel_support.weights is None and setting.weight_dtype not in device.weight_dtypes
    yield Refusal(
        "weight-dtype",
        _all_cases(cases, not setting.assumed and lacking),
        lambda i: (
            f"{device.title} has no kernels for {setting.weight_dtype} weights; "
            f"supported: {', '.join(device.weight_dtypes)}"
        ),
    )
    if kernel_support.weights is None:
        yield _engine_weights(setting, cases)
    yield _engine_technique(setting, cases)
    dtypes: list[str] = [name for name in device.kv_dtypes if name in engine.kv_dtypes]
    if (
        kernel_support.cached
        and setting.kv_dtype in engine.kv_dtypes
        and setting.kv_dtype not in WIDE
    ):
        dtypes.append(setting.kv_dtype)
    yield Refusal(
        "kv-dtype",
        _all_cases(cases, not setting.assumed and setting.kv_dtype not in dtypes),
        lambda i: (
            f"{engine.title} on {device.title} does not support {setting.kv_dtype} KV caches; "
            f"supported: {', '.join(dtypes) or 'none'}"
        ),
    )


def _engine_weights(setting: Setting, cases: Cases) -> Refusal:
    device, engine = setting.cluster.device, setting.engine
    quantization = setting.model.quantization
    writer = ""
    if quantization and quantization.dtype == setting.weight_dtype:
        writer = quantization.scheme.split("/")[0]
    gap = no_kernels(engine.wraps or engine.name, device.architecture, setting.weight_dtype, writer)
    weights = f"{setting.weight_dtype} weights" + (f" of {writer}" if gap and gap.encoding else "")
    note = f": {gap.note}" if gap and gap.note else ""
    return Refusal(
        "engine-weights",
        _all_cases(cases, not setting.assumed and gap is not None),
        lambda i: f"{engine.title} has no kernels for {weights} on {device.title}{note}",
    )


def _engine_technique(setting: Setting, cases: Cases) -> Refusal:
    """That the engine refuses the weights together with their activations."""
    device, engine = setting.cluster.device, setting.engine
    refused = weights_refusal(setting) if device.runtime in engine.runtimes else None

    def sentence(_: int) -> str:
        assert refused is not None  # noqa: S101 - else no case is broken
        alone = weight_only_technique(setting)
        does = f"; {technique(alone).title} alone run" if alone else ""
        title = technique(refused.technique).title
        words = refused.words or refused.note
        return f"{engine.title} does not run {title} on {device.title} (“{words}”){does}"

    return Refusal("engine-technique", _all_cases(cases, refused is not None), sentence)


def _degrees_text(cases: Cases, i: int) -> str:
    """The degrees that make a case's number of devices."""
    terms = f"TP {cases.tp[i]} × PP {cases.pp[i]} × DP {cases.dp[i]}"
    if cases.copies[i] > 1:
        terms += f" × {cases.copies[i]} replicas"
    if cases.disaggregated[i]:
        terms += f" + a prefill pool of {cases.prefill_devices[i]}"
    return terms


def _head_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    model = setting.model
    mixers = [a for layer, _ in model.kinds if (a := layer.attention) is not None]
    for heads, kv_heads in sorted({(a.heads, a.kv_heads) for a in mixers}):
        divisible = heads % cases.tp == 0
        yield indivisible_refusal("heads", ~divisible, f"{heads} attention heads are", tp=cases.tp)
        yield _kv_head_rule(kv_heads, divisible, cases)
    groups = min((a.o_groups for a in mixers if isinstance(a, CompressedAttention)), default=None)
    if groups:
        yield indivisible_refusal(
            "output-groups", groups % cases.tp != 0, f"{groups} output groups are", tp=cases.tp
        )
    layers = len(model.layers)
    yield Refusal(
        "layers",
        cases.pp > layers,
        lambda i: f"{layers} layers are too few for {cases.pp[i]} pipeline stages",
    )
    yield Refusal(
        "context",
        (cases.accepted_tokens > model.max_context) & setting.engine.split.enforces_context,
        lambda i: (
            f"requests of {cases.accepted_tokens[i]:,.0f} tokens exceed the model's context of "
            f"{model.max_context:,}"
        ),
    )


def _kv_head_rule(kv_heads: int, divisible: Bool, cases: Cases) -> Refusal:
    # Fewer KV heads than ranks are replicated, which works out only in whole multiples.
    uneven = (kv_heads % cases.tp != 0) & (cases.tp % kv_heads != 0)
    return Refusal(
        "kv-heads",
        uneven & divisible,
        lambda i: (
            f"{kv_heads} KV heads can be neither split nor replicated evenly over TP {cases.tp[i]}"
        ),
    )


def _engine_rules(setting: Setting, cases: Cases) -> Iterator[Refusal]:
    title = f"{setting.engine.title} {setting.engine.version}"
    yield from _task_rules(setting, cases, title)
    yield from _missing_features(setting, cases, title)
    yield from _draft_rules(setting, cases, title)
    if setting.engine.split.over_nodes == "never":
        ranks = cases.tp * cases.pp
        yield Refusal(
            "one-node",
            ranks > cases.per_node,
            lambda i: (
                f"a server of {title} cannot span nodes: it needs {ranks[i]} devices, "
                f"a node has {cases.per_node[i]}"
            ),
        )
    yield from _attention_ranks(setting, cases, title)
    yield from _shared_caches(setting, cases, title)
    yield from _expert_rules(setting, cases, title)


# What engines make for each task.
_TASKS = {"generate": "text", "embed": "embeddings", "score": "scores"}


def _task_rules(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Yield rules on tasks the engine lacks, and on whole prompts that do not fit a step."""
    task, tasks = setting.model.task, setting.engine.tasks
    makes = ", ".join(_TASKS[name] for name in tasks)
    yield Refusal(
        "task",
        _all_cases(cases, task not in tasks),
        lambda i: f"{title} is estimated for {makes}, not for {_TASKS[task]}",
    )
    if task == "generate":
        return
    refuses = setting.whole_prompts and not setting.engine.memory.truncates
    whole_prompt_cases = _all_cases(cases, refuses)
    yield Refusal(
        "whole-prompts",
        whole_prompt_cases & (cases.max_batched_tokens < cases.max_context),
        lambda i: (
            f"prompts run whole: a step of {cases.max_batched_tokens[i]:,.0f} tokens is less than "
            f"a request of {cases.max_context[i]:,.0f}; raise max_batched_tokens"
        ),
    )


def _missing_features(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    split = setting.engine.split
    if not split.tensor:
        yield Refusal(
            "no-tensor",
            cases.tp > 1,
            lambda i: f"{title} has no tensor parallelism; TP must be 1, not {cases.tp[i]}",
        )
    if not split.pipeline:
        yield Refusal(
            "no-pipeline",
            cases.pp > 1,
            lambda i: f"{title} has no pipeline parallelism; PP must be 1, not {cases.pp[i]}",
        )
    if not split.disaggregated:
        yield Refusal(
            "no-pools",
            cases.disaggregated,
            lambda i: f"{title} cannot transfer KV caches from a prefill pool to a decode pool",
        )
    if not split.speculative:
        yield Refusal(
            "no-drafts",
            cases.draft_tokens > 0,
            lambda i: f"{title} has no speculative decoding; leave speculative out",
        )


def _draft_rules(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Yield what the engine cannot combine with speculative decoding."""
    split, drafts = setting.engine.split, cases.draft_tokens > 0
    if not split.drafts_in_pipeline:
        stages = np.maximum(cases.pp, cases.prefill_pp)
        yield Refusal(
            "pipelined-drafts",
            drafts & (stages > 1),
            lambda i: (
                f"{title} has no speculative decoding with {stages[i]} pipeline stages; "
                "PP must be 1"
            ),
        )
    if not split.lookups_in_attention_dp:
        decode = cases.shares_experts & (cases.dp > 1)
        prefill = (cases.prefill_ep > 1) & (cases.prefill_dp > 1)
        yield Refusal(
            "looked-up-drafts",
            drafts & (cases.draft_layers == 0) & (decode | prefill),
            lambda i: f"{title} has no prompt-lookup drafts with data-parallel attention",
        )


def _attention_ranks(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Data-parallel attention within a server: some engines combine it with no tp, some lack it."""
    parallel = cases.shares_experts & (cases.dp > 1)
    if setting.engine.split.attention_dp == "none":
        yield Refusal(
            "no-attention-dp",
            parallel,
            lambda i: (
                f"{title} has no data-parallel attention; with EP, DP must be 1, not {cases.dp[i]}"
            ),
        )
    elif setting.engine.split.attention_dp == "whole":
        yield Refusal(
            "attention-dp",
            parallel & (cases.tp > 1),
            lambda i: (
                f"{title} runs attention either tensor- or data-parallel, not both: "
                f"TP {cases.tp[i]} × DP {cases.dp[i]}"
            ),
        )


def _shared_caches(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    """Ranks may share the cache of a KV head they would replicate; windows and states may not."""
    several = cases.cp > 1
    if not setting.engine.split.context:
        yield Refusal(
            "no-context",
            several,
            lambda i: f"{title} has no context parallelism; CP must be 1, not {cases.cp[i]}",
        )
    mixers = [a for layer, _ in setting.model.kinds if (a := layer.attention) is not None]
    full = all(
        isinstance(a, GroupedAttention | LatentAttention) and a.window is None for a in mixers
    )
    yield Refusal(
        "cp-cache",
        several & (not full),
        lambda i: "only caches of full attention can be shared between ranks; CP must be 1",
    )
    heads = max((a.kv_heads for a in mixers), default=1)
    copies = np.maximum(cases.tp // heads, 1)
    yield Refusal(
        "cp-divides",
        several & full & ((cases.tp % heads != 0) | (copies % cases.cp != 0)),
        lambda i: _indivisible_copies(cases, heads, copies, i),
    )


def _indivisible_copies(cases: Cases, heads: int, copies: Int, i: int) -> str:
    ranks = "1 rank" if copies[i] == 1 else f"{copies[i]} ranks"
    if cases.tp[i] % heads:
        return f"TP {cases.tp[i]} is not a multiple of the {heads} KV heads; CP must be 1"
    subject = f"each of {heads} KV heads" if heads > 1 else "the KV head"
    return f"TP {cases.tp[i]} puts {subject} on {ranks}, not divisible by CP {cases.cp[i]}"


def _expert_rules(setting: Setting, cases: Cases, title: str) -> Iterator[Refusal]:
    layers = [layer.mlp for layer, _ in setting.model.kinds]
    experts = max((mlp.experts for mlp in layers if isinstance(mlp, MoeMlp)), default=0)
    yield Refusal(
        "no-experts",
        (cases.ep > 1) & (experts == 0),
        lambda i: f"EP is {cases.ep[i]}, but the model has no experts; EP must be 1",
    )
    shared = cases.shares_experts & (experts > 0)
    yield Refusal(
        "experts",
        shared & (cases.ep > experts),
        lambda i: f"{experts} experts are too few for EP {cases.ep[i]}",
    )
    if setting.engine.split.even_experts:  # fused_moe_triton/layer.py of SGLang asserts it
        counts = sorted({mlp.experts for mlp in layers if isinstance(mlp, MoeMlp)})
        for count in counts:
            yield Refusal(
                "uneven-experts",
                shared & (cases.ep <= experts) & (count % cases.ep != 0),
                lambda i, count=count: (  # type: ignore[misc]
                    f"{title} gives every rank as many experts: {count} are not divisible by EP "
                    f"{cases.ep[i]}"
                ),
            )
    yield _expert_rank_rule(setting, cases, shared, title)


def _expert_rank_rule(setting: Setting, cases: Cases, shared: Bool, title: str) -> Refusal:
    """Return which numbers of ranks the engine can share experts over."""
    ranks = cases.tp * cases.dp
    if setting.engine.split.experts == "none":
        return Refusal(
            "no-expert-parallel",
            shared,
            lambda i: f"{title} has no expert parallelism; EP must be 1, not {cases.ep[i]}",
        )
    if setting.engine.split.experts == "divisors":
        return Refusal(
            "ep-divides",
            shared & (ranks % cases.ep != 0),
            lambda i: f"TP × DP = {ranks[i]} ranks are not divisible by EP {cases.ep[i]}",
        )
    return Refusal(
        "ep-ranks",
        shared & (cases.ep != ranks),
        lambda i: (
            f"{title} shares experts over all TP × DP = {ranks[i]} ranks; "
            f"EP must be 1 or {ranks[i]}, not {cases.ep[i]}"
        ),
    )
