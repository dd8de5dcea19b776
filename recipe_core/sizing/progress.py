"""A sizing in parts, so that the first devices are shown while others are still being sized.

A process keeps the parts of the latest request: with the next part, or with another question about
growth or purchases, nothing is sized twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import SCHEMA_VERSION, Answer
from recipe_core.sizing.device_sizing import SizedDevice
from recipe_core.sizing.market import iter_device_choices
from recipe_core.sizing.size import Sizing, request_by_means, simulate_best_devices, size_devices

# Devices of a part: about half a second, of training a second.
PART, TRAINING_PART = 6, 2
# Fields of a request on which no device's size depends.
AFTERWARDS = ("growth", "purchase")
Json = dict[str, Any]


def answer_in_parts(
    values: Mapping[str, Any], parts: int, *, digest: str = "", folders: bool = True
) -> Json:
    """The answer over the first ``parts`` parts of the devices, with how many devices those are.

    Short of the last part devices have a row, but neither a ladder nor what would make them win.
    With it, the answer is that of ``size`` over all devices.

    Args:
        values: a SizeRequest as plain values.
        parts: how many; more than there are count as all.
        digest: of the model's files, where these may change.
        folders: whether the model may be named by a path on this machine.

    Raises:
        RecipeError: as ``size``.
    """
    request = SizeRequest.parse(values)
    means = request_by_means(request).model_copy(update=dict.fromkeys(AFTERWARDS))
    all_choices = list(iter_device_choices(request))
    part_size = TRAINING_PART if request.is_training else PART
    some = [all_choices[n : n + part_size] for n in range(0, len(all_choices), part_size)] or [[]]
    sized = _latest_parts(
        json.dumps(means.model_dump(mode="json"), sort_keys=True), digest, folders
    )
    for n, part in enumerate(some[:parts]):
        if n not in sized:
            sized[n] = size_devices(means, folders=folders, among=part)
    sizing = reduce(Sizing.merged, [sized[n] for n in range(len(some[:parts]))])
    sizing = replace(sizing, request=request)
    count = {"sized": sum(map(len, some[:parts])), "of": len(all_choices)}
    if parts < len(some):
        return {**_best_rows_json(sizing), **count}
    if request.objective.limits.percentile is not None:
        sizing = simulate_best_devices(sizing)
    return {**Answer(sizing).to_json(), **count}


@lru_cache(maxsize=1)
def _latest_parts(text: str, digest: str, folders: bool) -> dict[int, Sizing]:  # noqa: ARG001 - the key
    """The parts of a request that this process has sized, by number; the caller adds to them."""
    return {}


def _best_rows_json(sizing: Sizing) -> Json:
    answer = Answer(sizing)

    def best(devices: Sequence[SizedDevice]) -> list[Json]:
        return [
            row
            for device in devices
            if device.best is not None
            for row in answer.rows(device, [device.best])
        ]

    devices = best(sizing.devices)
    return {
        "schema_version": SCHEMA_VERSION,
        "best": devices[0] if devices else None,
        "devices": devices,
        "unpriced": best(sizing.unpriced),
        "refused": [],
    }
