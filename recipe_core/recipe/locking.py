"""Making a lock from a decision."""

from __future__ import annotations

from pathlib import Path, PurePath

from pydantic import ValidationError

from recipe_core.base.errors import InputError
from recipe_core.launch.process import Launch
from recipe_core.models.checkpoint import checkpoint_digest, snapshot_of, split_revision
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

# Options of engines that seed sampling or initialisation.
SEEDS = ("seed", "random_seed")
# Options and variables that hold a second run to the first.
DETERMINISM = (
    "enable_deterministic_inference",
    "deterministic",
    "VLLM_BATCH_INVARIANT",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
)
# What the launcher draws its prompts and arrivals with.
BENCH_SEED = 1


def make_lock(decision: Decision, launch: Launch, recipe: Recipe, *, folders: bool) -> Lock:
    """The lock of a recipe; folders are looked into only where that is allowed.

    Raises:
        InputError: for an image of the user's without a tag, or with one that moves.
    """
    seeds = {k: v for k, v in launch.options.items() if k in SEEDS and isinstance(v, int)}
    if launch.kind == "serving":
        seeds["bench"] = BENCH_SEED
    return Lock(
        recipe_digest=recipe.digest,
        engine=EngineLock(
            name=decision.engine,
            version=decision.version,
            install=decision.install,
            packages=pinned_packages(decision.install),
        ),
        image=image_lock(decision, recipe.parameters),
        model=_model_lock(decision, folders=folders),
        device=DeviceLock(
            name=decision.cluster.device.name, profile_digest=decision.cluster.device.digest
        ),
        floors=dict(decision.floors),
        determinism={
            name: value
            for name, value in {**launch.options, **recipe.environment}.items()
            if name in DETERMINISM and value
        },
        seeds=seeds,
    )


def image_lock(decision: Decision, parameters: Parameters) -> ImageLock | None:
    """The user's image, else the one that holds the engine at its version; with its known digest.

    Raises:
        InputError: for an image without a tag, or with one that moves.
    """
    if parameters.image is None:
        image = decision.image
        return ImageLock(reference=image.reference, digest=image.digest) if image else None
    reference, _, digest = parameters.image.partition("@")
    try:
        return ImageLock(reference=reference, digest=digest or None)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        hint = "For example vllm/vllm-openai:v0.32.0."
        message = f"{message[0].lower()}{message[1:]}."
        raise InputError(message, field="parameters.image", hint=hint) from None


def without_digest(lock: Lock) -> str | None:
    """That an image is pinned by its tag alone, and how to get its digest; None where it is not."""
    if lock.image is None or lock.image.digest:
        return None
    return (
        f"{lock.image.reference} is pinned by its tag alone, which may move: image.digest is "
        "missing. `recipe lock BUNDLE --online -o BUNDLE` asks its registry and writes it; without "
        f"a network, build with `--set image={lock.image.reference}@sha256:…`."
    )


def _model_lock(decision: Decision, *, folders: bool) -> ModelLock:
    """The model by hub id and revision where known; of a folder also its checkpoint's digest."""
    model, name = decision.model, decision.request.model
    if not PurePath(model.name).is_absolute():
        revision = split_revision(name)[1] if isinstance(name, str) else None
        place = model.weights or model.name
        return ModelLock(id=place, revision=revision, architecture_digest=model.digest)
    snapshot = snapshot_of(model.name)
    files = checkpoint_digest(Path(model.name)) if folders else None
    return ModelLock(
        id=snapshot.id if snapshot else model.name,
        revision=snapshot.revision if snapshot else None,
        architecture_digest=model.digest,
        checkpoint=Checkpoint(digest=files.digest, of=files.of, files=files.files)
        if files
        else None,
    )
