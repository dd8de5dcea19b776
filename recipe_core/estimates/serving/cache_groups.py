"""Equal blocks shared by layers that cache in different ways, by vLLM's rule.

Models that mix full attention with windows or with states of fixed size draw all caches from one
pool. Layers of a kind form groups of equally many layers, and a block holds one page of each layer
of a group: a request holds blocks of every group, so a state or a window costs whole pages. Models
whose layers all cache alike need none of this; DeepSeek-V4's compressed caches are packed
(``cache_pages``).

Source: vLLM 0.32.0, ``v1/core/kv_cache_utils.py`` (``_get_kv_cache_groups_uniform_page_size``,
``unify_kv_cache_spec_page_size``), ``v1/kv_cache_interface.py`` and ``platforms/interface.py``
(``_align_hybrid_block_size``). Checked with what engines logged: Qwen3.8-27B holds 1,568 tokens a
block (one device, fp8); its token counts on one and two RTX 5090 are whole numbers of these blocks;
Gemma 4 31B with 32,768 tokens a step needs 70.79 GiB for 262,144 tokens, and 45.79 before 0.26
(vllm#49878).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers that cache alike: ``layers`` of the model, of which a rank has ``rank_layers``.

    token_bytes: per layer and token on a rank (0 for states); window: tokens that a layer sees
    (None: all); state_bytes: per layer and request on a rank. One number per case.
    """

    layers: int
    rank_layers: int
    token_bytes: Float
    state_bytes: Float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class PageRules:
    """What sizes pages: as ``engines.memory.CacheGroups``, and tokens of a plain block per case.

    shards: ranks that share the tokens of a block (context parallelism).
    """

    block_tokens: Float
    page_tokens: int
    state_blocks: Float
    shards: Float


@dataclass(frozen=True, slots=True)
class Grouped:
    """Blocks that a request holds of a shared pool: ``block_bytes`` each; one number per case.

    ``full``: tokens of a page and groups of layers that see everything; ``windows``: with their
    window; ``states``: blocks of states. ``groups``: of all layers; ``page_tokens``: the fewest
    tokens of a page.
    """

    block_bytes: Float
    full: tuple[tuple[Float, int], ...]
    windows: tuple[tuple[Float, int, int], ...]
    states: Float
    groups: int
    page_tokens: Float

    def evenly_tokens(self, pool_bytes: Float | float) -> Float:
        """Tokens of a pool whose blocks were shared out evenly to the groups, window or not."""
        blocks = np.floor(pool_bytes / self.block_bytes)
        return np.asarray(np.floor(blocks / self.groups) * self.page_tokens, dtype=np.float64)

    def request_bytes(self, context: Float, in_flight: Float | float = 1.0) -> Float:
        """Bytes of one request whose newest ``in_flight`` tokens are still being computed."""
        blocks = self.states + np.zeros_like(context)
        for tokens, groups in self.full:
            blocks = blocks + groups * np.ceil(context / tokens)
        for tokens, groups, window in self.windows:
            # one block more: a window may start inside a block
            window_tokens = np.minimum(window - 1 + in_flight, context)
            blocks = blocks + groups * (np.ceil(window_tokens / tokens) + 1)
        return blocks * self.block_bytes


def layers_per_group(layers: Sequence[int]) -> int:
    """Layers of a group: those of the rarest kind, or of the commonest if it has few more."""
    fewest, largest = min(layers), max(layers)
    return largest if largest < 1.5 * fewest else fewest


def group_cache_blocks(kinds: Sequence[CacheKind], rules: PageRules) -> Grouped:
    """The shared blocks of several kinds of layers on a rank."""
    size = layers_per_group([kind.layers for kind in kinds])
    counts = [-(-kind.layers // size) for kind in kinds]
    # layers of a kind are dealt out to its groups, so that stages of a pipeline get equally many
    deepest = max(-(-kind.rank_layers // count) for kind, count in zip(kinds, counts, strict=True))
    tokens = _page_tokens(kinds, rules)
    page = np.max([tokens * kind.token_bytes for kind in kinds], axis=0)
    page = np.maximum(page, np.max([kind.state_bytes for kind in kinds], axis=0))
    full, windows, states = [], [], np.zeros_like(page)
    fewest, groups = np.full_like(page, np.inf), 0
    for kind, count in zip(kinds, counts, strict=True):
        if not kind.rank_layers:
            continue
        groups += count
        if not kind.token_bytes.any():
            states = states + count * rules.state_blocks
            continue
        page_bytes = tokens * kind.token_bytes
        # a smaller page holds more tokens where it goes into the largest, else it is padded
        fits = np.where(page % page_bytes == 0, page // page_bytes, 1.0)
        fewest = np.minimum(fewest, tokens * fits)
        if kind.window is None:
            full.append((tokens * fits * rules.shards, count))
        else:
            windows.append((tokens * fits, count, kind.window))
    return Grouped(deepest * page, tuple(full), tuple(windows), states, groups, fewest)


def _page_tokens(kinds: Sequence[CacheKind], rules: PageRules) -> Float:
    """Tokens of a page: a block's, or as many as a state fits into."""
    state = np.max([kind.state_bytes for kind in kinds], axis=0)
    token = np.max([kind.token_bytes for kind in kinds], axis=0)
    step = np.maximum(rules.page_tokens, rules.block_tokens)
    pages = np.ceil(state / np.maximum(step * token, 1.0))
    tokens: Float = np.maximum(rules.block_tokens, step * pages)
    return tokens
