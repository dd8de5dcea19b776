"""Signatures of bundles: ed25519 over the manifest, which has the digest of every other file.

Keys are PEM files of the user.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from recipe_core.base.documented import DescribedModel
from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import BundleError, InputError
from recipe_core.base.problems import first_problem

MANIFEST = "MANIFEST.json"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_CHANGED = "The bundle was changed; build it again or get it from its author."


class Manifest(DescribedModel):
    """The recipe's name and digest, and files by path."""

    schema_version: Literal[1] = 1
    """Version of this schema."""

    recipe: str
    """Name of the recipe that the bundle was made from."""

    recipe_digest: Sha256
    """SHA-256 of the recipe's content, in hexadecimal digits."""

    files: Annotated[dict[str, Sha256], Field(min_length=1)]
    """SHA-256 of every other file, in hexadecimal digits, by its path in the bundle."""

    @classmethod
    def of(cls, name: str, digest: str, files: Mapping[str, bytes]) -> Manifest:
        """The manifest of ``files``, each with its SHA-256."""
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}
        return cls(recipe=name, recipe_digest=digest, files=digests)

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """A manifest from JSON.

        Raises:
            BundleError: when it is not a manifest.
        """
        try:
            return cls.model_validate(_manifest_values(text))
        except InputError as error:
            raise BundleError(error.message, hint="Build the bundle again.") from None
        except ValidationError as error:
            problem = first_problem(error)
            message = f"{MANIFEST}: {problem.field}: {problem.message}."
            raise BundleError(message, hint="Build the bundle again.") from None

    def verify(self, files: Mapping[str, bytes]) -> None:
        """Compare ``files`` with the digests.

        Raises:
            BundleError: for the first file that is missing, added or changed.
        """
        present, listed = set(files), set(self.files)
        if missing := listed - present:
            raise BundleError(f"{min(missing)} is missing.", hint=_CHANGED)
        if added := present - listed:
            raise BundleError(f"{min(added)} is not in the manifest.", hint=_CHANGED)
        for name in sorted(present):
            if hashlib.sha256(files[name]).hexdigest() != self.files[name]:
                raise BundleError(f"{name} differs from its digest in the manifest.", hint=_CHANGED)


def _manifest_values(text: str) -> Any:
    value = parse_json(text, MANIFEST)
    if not isinstance(value, dict) or not isinstance(value.get("files"), dict):
        raise InputError(f"{MANIFEST} lists no files.")
    return value


SIGNATURE = "SIGNATURE"
_PREFIX = b"recipe-builder bundle manifest, version 1\n"  # so no signature of other data passes
_MISSING = "signatures need the package `cryptography`."
_INSTALL = "Install it: pip install 'recipe-builder[sign]'"


@dataclass(frozen=True, slots=True)
class Signed:
    """The key that signed a bundle; ``trusted``: whether it is the one the reader gave."""

    fingerprint: str
    trusted: bool


def new_key() -> tuple[bytes, bytes]:
    """A private key and its public key, both as PEM."""
    serialization, ed25519 = _import_cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    pem, raw = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, key.public_key().public_bytes(pem, raw)


def sign_manifest(manifest: bytes, private_pem: bytes) -> bytes:
    """The content of ``SIGNATURE`` for a manifest.

    Raises:
        InputError: when the key is not an unencrypted ed25519 private key.
    """
    serialization, ed25519 = _import_cryptography()
    try:
        key = serialization.load_pem_private_key(private_pem, password=None)
    except TypeError:
        raise InputError(
            "the key is encrypted.",
            field="sign",
            hint="Decrypt it first: openssl pkey -in KEY.pem -out PLAIN.pem",
        ) from None
    except Exception as error:  # the library raises many kinds for what is not a key
        raise InputError(
            f"is not a private key in PEM format ({type(error).__name__}).",
            field="sign",
            hint="Make one: recipe keygen",
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError("is not an ed25519 key.", field="sign", hint="Make one: recipe keygen")
    public = key.public_key().public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )
    text = {
        "schema_version": 1,
        "algorithm": "ed25519",
        "public_key": _base64_text(public),
        "signature": _base64_text(key.sign(_PREFIX + manifest)),
    }
    return to_json(text).encode()


def check_signature(manifest: bytes, signature: bytes, public_pem: bytes | None = None) -> Signed:
    """The key of a valid signature.

    Raises:
        BundleError: when it is damaged, of another manifest, or not by the key ``public_pem``.
        InputError: when that is not a public key, or the package for signatures is missing.
    """
    _, ed25519 = _import_cryptography()
    public, signed = _read_signature(signature)
    if public_pem is not None and _public_bytes(public_pem) != public:
        raise BundleError(
            f"the bundle is signed by the key {key_fingerprint(public)}, "
            f"not by the one given ({key_fingerprint(_public_bytes(public_pem))}).",
            hint="Do not use it unless you trust that key.",
        )
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signed, _PREFIX + manifest)
    except Exception:  # InvalidSignature, or a key that is not a point of the curve
        raise BundleError(
            "the signature does not belong to this manifest.",
            hint="The bundle was changed; get it from its author.",
        ) from None
    return Signed(key_fingerprint(public), trusted=public_pem is not None)


def key_fingerprint(public: bytes) -> str:
    return f"ed25519:{hashlib.sha256(public).hexdigest()[:32]}"


def _read_signature(signature: bytes) -> tuple[bytes, bytes]:
    try:
        value = parse_json(signature.decode(), SIGNATURE)
        if value["schema_version"] == 1 and value["algorithm"] == "ed25519":
            key = base64.b64decode(value["public_key"], validate=True)
            return key, base64.b64decode(value["signature"], validate=True)
    except (ValueError, KeyError, TypeError, InputError):
        pass
    raise BundleError(
        f"{SIGNATURE} is not a signature that this version reads.",
        hint="Get the bundle from its author.",
    )


def _public_bytes(pem: bytes) -> bytes:
    serialization, ed25519 = _import_cryptography()
    try:
        key = serialization.load_pem_public_key(pem)
    except Exception as error:  # the library raises many kinds for what is not a key
        raise InputError(
            f"is not a public key in PEM format ({type(error).__name__}).",
            field="public_key",
            hint="Give the .pub.pem file.",
        ) from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(
            "is not an ed25519 key.",
            field="public_key",
            hint="Give the .pub.pem file that recipe keygen wrote.",
        )
    raw: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def _base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _import_cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise InputError(_MISSING, field="signature", hint=_INSTALL) from None
    return serialization, ed25519
