"""What bundles for GPUs must have otherwise on processors, of tools that the builder refuses there.

Every change is here: a field of a file that a tool reads, or a variable of the image. All else of
such a bundle is as it was rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FIELDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # Accelerate has no FSDP on a processor
    "trl": {
        "trl.yaml": {"use_cpu": True},
        "accelerate.yaml": {
            "use_cpu": True,
            "distributed_type": "MULTI_CPU",
            "fsdp_config": {},
            "parallelism_config": {},
        },
    },
    # transformers' trainer takes bf16 on a processor only where it is told that it is one
    "llama-factory": {"llama_factory.yaml": {"use_cpu": True}},
    # Axolotl cannot tell it that
    "axolotl": {
        "axolotl.yaml": {"bf16": False},
        "ds_config.json": {"bf16": {"enabled": False}},
    },
}
"""By framework and file: fields with other values."""
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "axolotl": {"ACCELERATE_USE_CPU": "true", "AXOLOTL_DO_NOT_TRACK": "1"},
}
DEVICE = "h100-sxm"
"""What such bundles are planned for."""


def changed(engine: str, path: str, text: str) -> str:
    """A file of a bundle as a processor needs it."""
    fields = FIELDS.get(engine, {}).get(path)
    if fields is None:
        return text
    if path.endswith(".json"):
        return json.dumps(json.loads(text) | fields, indent=1)
    return str(yaml.safe_dump(yaml.safe_load(text) | fields, sort_keys=False))


def prepare(engine: str, bundle: Path) -> None:
    """Change a bundle's files where they stand, and in the ConfigMaps of its targets."""
    for path in FIELDS.get(engine, {}):
        file = bundle / path
        file.write_text(changed(engine, path, file.read_text()))
    for file in bundle.glob("targets/*/files.yaml"):
        manifest = yaml.safe_load(file.read_text())
        texts = manifest["data"]
        manifest["data"] = {key: changed(engine, key, text) for key, text in texts.items()}
        file.write_text(yaml.safe_dump(manifest))
