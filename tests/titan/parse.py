"""What torchtitan's own parser makes of commands: lines of JSON in, lines of JSON out.

A line is the path of a bundle's script and the words after it; the answer is the configuration, and
the ``kinds`` of its products.
"""

from __future__ import annotations

import json
import runpy
import sys
from types import ModuleType
from typing import Any

from torchtitan.components.quantization import float8, mx
from torchtitan.config.manager import ConfigManager
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts


def answer(script: str, words: list[str]) -> dict[str, Any]:
    """The configuration that the program would start with."""
    module = ModuleType("run_config")
    module.run = runpy.run_path(script)["run"]
    sys.modules["run_config"] = module
    config = ConfigManager().parse_args(words)
    model = config.model_spec.model
    model.update_from_config(config=config)
    parts = (
        part for kind in (Linear, GroupedExperts) for _, part, *_ in model.traverse(kind.Config)
    )
    kinds = {type(part).__qualname__ for part in parts}
    return config.to_dict() | {"kinds": sorted(kinds)}


def main() -> None:
    """Answer every line."""
    for part in (float8, mx):  # which ask whether this machine has such a device
        part.has_cuda_capability = lambda *_: True
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(answer(**asked), default=repr) + "\n")


if __name__ == "__main__":
    main()
