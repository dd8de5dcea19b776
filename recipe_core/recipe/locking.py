"""Making a lock from a decision."""

from __future__ import annotations

from pathlib import Path, PurePath

from pydantic import ValidationError

from recipe_core.base.errors import InputError
from recipe_core.launch.process import Launch
from recipe_core.model.checkpoint import checkpoint_digest
from recipe_core.model.revision import snapshot_of, split_revision
from recipe_core.recipe.decision import Decision
from recipe_core.recipe.lock import (
    Checkpoint,
    DeviceLock,
    EngineLock,
    ImageLock,
    Lock,
    ModelLock,
    pinned_packages,
)
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.schema import Recipe

SEEDS = ("seed", "random_seed")
"""Options of engines that seed sampling or initialisation."""
DETERMINISM = (
    "enable_deterministic_inference",
    "deterministic",
    "VLLM_BATCH_INVARIANT",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
)
"""Options and variables that hold a second run to the first."""
BENCH_SEED = 1
"""What the launcher draws its prompts and arrivals with."""


def make_lock(decision: Decision, launch: Launch, recipe: Recipe, *, folders: bool) -> Lock:
    """The lock of a recipe; folders are looked into only where that is allowed.

    Raises:
        InputError: for an image of the user's without a tag, or with one that moves.
    """
    stated = {
        name: value
        for name, value in launch.options.items()
        if name in SEEDS and isinstance(value, int)
    }
    return Lock(
        recipe_digest=recipe.digest,
        engine=EngineLock(
            name=decision.engine,
            version=decision.version,
            install=decision.install,
            packages=pinned_packages(decision.install),
        ),
        image=image_lock(decision, recipe.parameters),
        model=_model(decision, folders=folders),
        device=DeviceLock(
            name=decision.cluster.device.name, profile_digest=decision.cluster.device.digest
        ),
        floors=dict(decision.floors),
        determinism={
            name: value
            for name, value in {**launch.options, **recipe.environment}.items()
            if name in DETERMINISM and value
        },
        seeds=stated | ({"bench": BENCH_SEED} if launch.kind == "serving" else {}),
    )


def image_lock(decision: Decision, parameters: Parameters) -> ImageLock | None:
    """The user's image, else the one that holds the engine at its version; by digest where that is known.

    Raises:
        InputError: for an image without a tag, or with one that moves.
    """
    if parameters.image is None:
        return (
            ImageLock(reference=decision.image.reference, digest=decision.image.digest)
            if decision.image
            else None
        )
    reference, _, digest = parameters.image.partition("@")
    try:
        return ImageLock(reference=reference, digest=digest or None)
    except ValidationError as error:
        said = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{said[0].lower()}{said[1:]}.",
            field="parameters.image",
            hint="For example vllm/vllm-openai:v0.32.0.",
        ) from None


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
        checkpoint=Checkpoint(digest=found.digest, of=found.of, files=found.files)
        if found
        else None,
    )
