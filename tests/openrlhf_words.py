"""``python openrlhf_words.py FOLDER WORD…``: OpenRLHF's own parser and checks of a command line.

``FOLDER`` holds the package; what it runs on (Ray, vLLM, DeepSpeed) is not needed. Prints what it
would train with, as JSON.
"""

from __future__ import annotations

import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any

NEEDED = {
    "ray": (),
    "ray.util": (),
    "ray.util.placement_group": ("placement_group",),
    "openrlhf.trainer": (),
    "openrlhf.trainer.ray": ("create_vllm_engines",),
    "openrlhf.trainer.ray.launcher": ("RayActorGroup", "ReferenceModelActor", "RewardModelActor"),
    "openrlhf.trainer.ray.ppo_actor": ("PolicyModelActor",),
    "openrlhf.trainer.ray.ppo_critic": ("CriticModelActor",),
    "openrlhf.utils": ("get_strategy",),
}
"""Modules that its program imports before it parses, and what it takes from them."""


def plain(value: Any) -> Any:
    """Namespaces as mappings."""
    if isinstance(value, types.SimpleNamespace):
        return {name: plain(item) for name, item in vars(value).items()}
    return value


def trained() -> bool:
    """In place of ``ray.is_initialized``, the first call of its training."""
    arguments = sys._getframe(1).f_locals["args"]
    sys.stdout.write(json.dumps(plain(arguments), default=str) + "\n")
    raise SystemExit(0)


def main(folder: str, *words: str) -> None:
    sys.path.insert(0, folder)
    for name, contents in NEEDED.items():
        module = types.ModuleType(name)
        module.__path__ = [str(Path(folder, *name.split(".")))]
        for one in contents:
            setattr(module, one, object)
        sys.modules[name] = module
    sys.modules["ray"].is_initialized = trained  # type: ignore[attr-defined]
    sys.argv = ["train_ppo_ray", *words]
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
