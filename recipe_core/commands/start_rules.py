"""What engines check of a command when they start, as their grammars list it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from recipe_core.commands.arguments import Finding
from recipe_core.commands.meaning import Meant
from recipe_core.engines.grammar import grammars
from recipe_core.models.spec import ModelSpec


def check_rules(meant: Meant, model: ModelSpec) -> None:
    for name in grammars()[meant.engine].rules:
        meant.findings.extend(_RULES[name](meant, model))


def _batched_covers_seqs(meant: Meant, _: ModelSpec) -> Iterable[Finding]:
    tokens = meant.candidate.get("max_batched_tokens")
    sequences = meant.candidate.get("max_num_seqs")
    if tokens and sequences and tokens < sequences:
        message = (
            f"a step of {tokens:,} tokens is less than one for each of {sequences:,} sequences."
        )
        yield Finding("error", "limits", None, message, "Raise the tokens.")


def _unchunked_covers_context(meant: Meant, model: ModelSpec) -> Iterable[Finding]:
    tokens = meant.candidate.get("max_batched_tokens")
    longest = meant.max_context if isinstance(meant.max_context, int) else model.max_context
    if not meant.chunked and tokens and tokens < longest:
        step = f"without chunked prefill a step of {tokens:,} tokens"
        message = f"{step} is less than a request of {longest:,}."
        yield Finding("error", "limits", None, message)


def _experts_to_share(meant: Meant, model: ModelSpec) -> Iterable[Finding]:
    if meant.shares_experts and not model.is_moe:
        message = f"{model.name} has no experts to share."
        yield Finding("error", "no-experts", None, message, "Leave expert parallelism out.")


def _balanced_needs_shared(meant: Meant, _: ModelSpec) -> Iterable[Finding]:
    if meant.balanced and not meant.shares_experts:
        yield Finding("error", "balanced", None, "balancing experts needs expert parallelism.")


def _replicas_on_one_node(meant: Meant, _: ModelSpec) -> Iterable[Finding]:
    if (meant.nodes or 1) > 1 and meant.candidate.get("dp", 1) > 1 and not meant.attention_dp:
        message = f"replicas (dp {meant.candidate['dp']}) do not span {meant.nodes} nodes."
        yield Finding("error", "replicas", None, message)


_RULES: dict[str, Callable[[Meant, ModelSpec], Iterable[Finding]]] = {
    "batched-covers-seqs": _batched_covers_seqs,
    "unchunked-covers-context": _unchunked_covers_context,
    "experts-to-share": _experts_to_share,
    "balanced-needs-shared": _balanced_needs_shared,
    "replicas-on-one-node": _replicas_on_one_node,
}
