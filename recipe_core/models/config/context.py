"""The longest context that a config states, rope scaling included."""

from __future__ import annotations

from recipe_core.models.config.fields import MAX_CONTEXT, Reader

_CONTEXT = (
    "max_position_embeddings",
    "max_sequence_length",
    "n_positions",
    "seq_length",
    "model_max_length",
    "max_seq_len",
    "n_ctx",
)


def max_context(read: Reader, notes: list[str]) -> int:
    """The context in tokens; appends what is assumed to ``notes``.

    YaRN configs state the short or the long length; the effective one is at least
    ``original_max_position_embeddings × factor``, as vLLM derives it. Linear and dynamic scaling
    multiply the stated length; llama3 and longrope configs state the long one already.
    """
    if not any(read.config.get(name) is not None for name in _CONTEXT):
        notes.append("The config states no context length; 4,096 tokens are assumed.")
    length = read.whole(_CONTEXT, MAX_CONTEXT, default=4096)
    name = "rope_scaling" if read.config.get("rope_scaling") else "rope_parameters"
    scaling = read.inside(name)
    kind = scaling.config.get("rope_type") or scaling.config.get("type")
    if (
        kind not in ("yarn", "linear", "dynamic")
        or not scaling.has("factor")
        or read.has("context_includes_scaling")
    ):
        return length
    factor = scaling.number("factor", 1_000_000)
    if kind == "yarn":
        original = scaling.whole(("original_max_position_embeddings",), MAX_CONTEXT, default=length)
        effective = max(length, int(original * factor))
    else:
        effective = int(length * factor)
    if not 1 <= effective <= MAX_CONTEXT:
        raise scaling.error(
            "factor", f"gives a context of {effective:,} tokens, beyond {MAX_CONTEXT:,}."
        )
    if effective != length:
        notes.append(
            f"{kind} rope scaling extends the context from {length:,} to {effective:,} tokens."
        )
    return effective
