"""Images of the prompts that a command is judged with, and how its engine holds encoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.commands.context import CommandContext
from recipe_core.commands.verdict import Case
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.rules.own_options import effects_of
from recipe_core.models.spec import ModelSpec
from recipe_core.request.serving_workload import MediaItems


def media_of(case: Case, context: CommandContext, model: ModelSpec) -> tuple[dict[str, Any], int]:
    """Fields of a workload about images and sound, and the tokens of a prompt that are images.

    A server that reads no images gets prompts of text, which is said.
    """
    out: dict[str, Any] = {}
    read = tuple(tower.modality for tower in model.towers)
    if any(modality in case.meant.without for modality in read):
        out["modalities"] = [name for name in read if name not in case.meant.without]
    if context.images is None:
        return out, 0
    if "image" not in out.get("modalities", read):
        case.say("note", "images", f"{model.name} reads no images here; prompts are text.")
        return out, 0
    items = MediaItems(per_request=context.images)
    tokens = context.image_tokens or items.tokens
    out["images"] = {"per_request": items.per_request, "tokens": tokens}
    return out, round(items.per_request * tokens)


def command_setting(shared: Setting, case: Case) -> Setting:
    """The setting of a command: its own options, graphs that it captures, encoders as held."""
    spec = shared.engine
    if case.meant.candidate.get("eager"):
        spec = spec.without_graphs()
    if case.meant.whole_encoders:
        spec = spec.with_whole_encoders()
    effects = replace(
        effects_of(spec, case.meant.own_options, case.launch.env, shared.model),
        sequences_open=spec.memory.compressed_pools is not None
        and "max_num_seqs" not in case.meant.candidate,
    )
    if spec is shared.engine and effects == shared.effects:
        return shared
    return replace(shared, engine=spec, effects=effects)
