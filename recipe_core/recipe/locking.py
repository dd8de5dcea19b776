"""Making a lock from a decision."""

from __future__ import annotations

from pathlib import Path, PurePath

from recipe_core.engines.deployment import Launch
from recipe_core.model.checkpoint import checkpoint_digest
from recipe_core.model.revision import snapshot_of, split_revision
from recipe_core.recipe.decision import Decision
from recipe_core.recipe.lock import Checkpoint, EngineLock, Lock, ModelLock, pinned_packages

SEEDS = ("seed", "random_seed")
"""Options of engines that seed sampling or initialisation."""
BENCH_SEED = 1
"""What the launcher draws its prompts and arrivals with."""


def make_lock(decision: Decision, launch: Launch, recipe_digest: str, *, folders: bool) -> Lock:
    """The lock of a decision; folders are looked into only where that is allowed."""
    stated = {name: value for name, value in launch.options.items() if name in SEEDS and isinstance(value, int)}
    return Lock(
        recipe_digest=recipe_digest,
        engine=EngineLock(
            name=decision.engine, version=decision.version, install=decision.install, packages=pinned_packages(decision.install)
        ),
        model=_model(decision, folders=folders),
        seeds=stated | ({"bench": BENCH_SEED} if launch.kind == "serving" else {}),
    )


def _model(decision: Decision, *, folders: bool) -> ModelLock:
    """The model by its hub id and revision where these are known; of a folder also what its files are."""
    model, asked = decision.model, decision.request.model
    if not PurePath(model.name).is_absolute():
        revision = split_revision(asked)[1] if isinstance(asked, str) else None
        return ModelLock(id=model.name, revision=revision, architecture_digest=model.digest)
    snapshot = snapshot_of(model.name)
    found = checkpoint_digest(Path(model.name)) if folders else None
    return ModelLock(
        id=snapshot.id if snapshot else model.name,
        revision=snapshot.revision if snapshot else None,
        architecture_digest=model.digest,
        checkpoint=Checkpoint(digest=found.digest, of=found.of, files=found.files) if found else None,
    )
