"""Making a lock from a decision, with the digest that an image's tag has now.

Registries are asked anonymously, over HTTPS alone, with limits on time and size; what a registry
answers is not trusted.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePath
from urllib.parse import urlencode, urlsplit

from pydantic import ValidationError

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.base.problems import first_problem
from recipe_core.base.web import Answer, Deadline, FetchError, fetch_url
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

# Time for all that is asked, tokens too.
SECONDS = 30.0
MOST_TOKEN_BYTES, MOST_MANIFEST_BYTES = 64 << 10, 4 << 20
# The registry of references without a host.
HUB = "registry-1.docker.io"
_HUB_NAMES = ("docker.io", "index.docker.io")
# What a tag may be; a list of images by platform comes first: its digest holds on all of them.
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(f"{_PART}(/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Place:
    """A tag in a registry."""

    host: str
    repository: str
    tag: str

    @property
    def url(self) -> str:
        return f"https://{self.host}/v2/{self.repository}/manifests/{self.tag}"


def image_place(reference: str) -> Place:
    """Return the place of an image's tag: ``vllm/vllm-openai:v0.32.0``, ``ghcr.io/owner/name:tag``.

    Raises:
        InputError: for a reference without a tag, or that is none.
    """
    first, slash, rest = reference.partition("/")
    hosted = bool(slash) and (bool({".", ":"} & set(first)) or first == "localhost")
    host, path = (first, rest) if hosted else (HUB, reference)
    repository, _, tag = path.rpartition(":")
    if host in (HUB, *_HUB_NAMES):
        host = HUB
        repository = repository if "/" in repository else f"library/{repository}"
    parts = ((_HOST, host), (_REPOSITORY, repository), (_TAG, tag))
    if not all(pattern.fullmatch(part) for pattern, part in parts):
        raise InputError(
            f"{reference!r:.160} is no image with a tag.",
            field="lock.image.reference",
            hint="For example vllm/vllm-openai:v0.32.0.",
        )
    return Place(host, repository, tag)


def image_digest(reference: str) -> str:
    """``sha256:`` and 64 digits: what the tag of an image means now.

    Raises:
        InputError: for a reference that is none.
        NoAnswer: when the registry does not answer, or has no such image for everybody.
    """
    place, deadline = image_place(reference), Deadline(SECONDS)
    try:
        answer = _ask_manifest(place, deadline, "")
        if answer.status == HTTPStatus.UNAUTHORIZED:
            token = _anonymous_token(answer.headers.get("WWW-Authenticate", ""), place, deadline)
            answer = _ask_manifest(place, deadline, token)
    except FetchError as error:
        raise NoAnswer(
            f"{place.host} does not answer for {reference}: {error}.",
            field="lock.image",
            hint="Ask again where it can be reached.",
        ) from None
    if answer.status != HTTPStatus.OK:
        raise _registry_refusal(reference, answer.status)
    header_digest = answer.headers.get("Docker-Content-Digest", "")
    # The header is optional: a digest is the hash of the manifest as it is served.
    served = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    return header_digest if _DIGEST.fullmatch(header_digest) else served


def _registry_refusal(reference: str, code: int) -> NoAnswer:
    causes = {
        401: "it is not public, or there is no such image",
        403: "it is not public, or there is no such image",
        404: "there is no such tag",
        429: "it was asked too often",
    }
    return NoAnswer(
        f"the registry refuses {reference} with status {code}: {causes.get(code, 'no reason')}.",
        field="lock.image",
        hint="State the digest of a private image: --set image=NAME:TAG@sha256:….",
    )


def _ask_manifest(place: Place, deadline: Deadline, token: str) -> Answer:
    """The head of a manifest, if that states its digest; else the manifest. A token is optional."""
    headers = {"Accept": ", ".join(MANIFESTS)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    for method in ("HEAD", "GET"):
        answer = fetch_url(
            place.url,
            deadline=deadline,
            most_bytes=MOST_MANIFEST_BYTES,
            headers=headers,
            method=method,
        )
        header_digest = answer.headers.get("Docker-Content-Digest", "")
        if answer.status != HTTPStatus.OK or _DIGEST.fullmatch(header_digest):
            break
    return answer


def _anonymous_token(challenge: str, place: Place, deadline: Deadline) -> str:
    """A token for everybody, from where the registry says that it is to be had."""
    scheme, _, rest = challenge.partition(" ")
    parts = dict(_CHALLENGE.findall(rest))
    if scheme.casefold() != "bearer" or "realm" not in parts:
        raise FetchError("it wants a password")
    scope = parts.get("scope") or f"repository:{place.repository}:pull"
    query = {"scope": scope, **({"service": parts["service"]} if "service" in parts else {})}
    try:
        joint = "&" if urlsplit(parts["realm"]).query else "?"
    except ValueError:
        raise FetchError("it wants a token from what is no address") from None
    answer = fetch_url(
        f"{parts['realm']}{joint}{urlencode(query)}",
        deadline=deadline,
        most_bytes=MOST_TOKEN_BYTES,
    )
    try:
        values = json.loads(answer.body)
    except (ValueError, RecursionError):
        values = None
    token = values.get("token") or values.get("access_token") if isinstance(values, dict) else None
    # in a header, so nothing that could end it
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise FetchError("it gives no token")
    return token


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
        hint = "For example vllm/vllm-openai:v0.32.0."
        message = f"{first_problem(error).message}."
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
