"""Signatures: good ones, bad ones, another's; and what bundles say they pull."""

from __future__ import annotations

import json

import pytest

from recipe_core.base.documents import write_whole
from recipe_core.base.errors import BundleError, InputError
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.sbom import sbom
from recipe_core.bundle.signing import SIGNATURE, new_key, sign
from recipe_core.bundle.verify import read_bundle, unpack
from recipe_core.bundle.write import bundle_files, write_bundle, zip_bytes
from recipe_core.recipe import make_recipe
from recipe_core.recipe.lock import ImageLock
from tests.conftest import make_request
from tests.fixtures.recipes import recipe_of

pytest.importorskip("cryptography", reason="needs cryptography (the extra 'sign')")


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return new_key()


def test_a_signature_is_checked_against_the_key(recipe, keys, tmp_path):
    private, public = keys
    for name in ("b.zip", "folder"):
        target = write_bundle(recipe, tmp_path / name, private)
        assert read_bundle(target, public).signed.trusted
        signed = read_bundle(target).signed
        assert (signed.trusted, signed.fingerprint[:8]) == (False, "ed25519:")
        with pytest.raises(BundleError, match="not by the one given"):
            read_bundle(target, new_key()[1])
    assert read_bundle(unpack(tmp_path / "b.zip"), public).signed.trusted


def test_signing_is_deterministic(recipe, files, keys):
    assert zip_bytes(recipe, keys[0]) == zip_bytes(recipe, keys[0])
    signed = bundle_files(recipe, keys[0])
    assert signed[MANIFEST] == files[MANIFEST]
    assert b"".join(keys[0].splitlines()[1:-1]) not in b"".join(signed.values())


def test_an_unsigned_bundle_is_refused_where_a_key_is_asked_for(archive, keys):
    assert read_bundle(archive).signed is None
    with pytest.raises(BundleError, match="not signed"):
        read_bundle(archive, keys[1])


def test_a_signature_of_another_bundle_is_refused(folder, keys):
    """Files and manifest that agree with each other do not help without the key."""
    other = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)
    (folder / SIGNATURE).write_bytes(bundle_files(other, keys[0])[SIGNATURE])
    for public in (None, keys[1]):
        with pytest.raises(BundleError, match="does not belong"):
            read_bundle(folder, public)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"schema_version": 1, "algorithm": "rsa", "public_key": "", "signature": ""}',
        b'{"schema_version": 1, "algorithm": "ed25519", "public_key": "!", "signature": ""}',
        b'{"schema_version": 1, "algorithm": "ed25519", "public_key": 3, "signature": ""}',
        b'{"schema_version": 1, "algorithm": "ed25519", "public_key": "AA==", "signature": "AA=="}',
    ],
)
def test_a_damaged_signature_is_one_error_and_nothing_is_written(folder, text):
    (folder / SIGNATURE).write_bytes(text)
    with pytest.raises(BundleError, match=r"signature|SIGNATURE"):
        read_bundle(folder)


@pytest.mark.parametrize(
    "key", [b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused(recipe, keys, key, tmp_path):
    with pytest.raises(InputError, match="private key"):
        sign(b"manifest", key)
    with pytest.raises(InputError, match="public key"):
        read_bundle(write_bundle(recipe, tmp_path / "b.zip", keys[0]), key)


def test_a_key_of_another_kind_or_encrypted_is_refused():
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    form = (Encoding.PEM, PrivateFormat.PKCS8)
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(*form, NoEncryption())
    with pytest.raises(InputError, match="not an ed25519 key"):
        sign(b"m", other)
    locked = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(InputError, match="encrypted"):
        sign(b"m", locked.private_bytes(*form, BestAvailableEncryption(b"p")))


def test_a_private_file_is_its_owners_alone(tmp_path, keys):
    write_whole(tmp_path / "k.pem", keys[0], private=True)
    assert (tmp_path / "k.pem").stat().st_mode & 0o077 == 0


def test_the_bill_names_what_is_pulled(recipe, files):
    found = sbom(recipe)
    refs = {each["bom-ref"]: each for each in found["components"]}
    assert refs["model"]["purl"] == "pkg:huggingface/meta-llama/Llama-3.1-70B-Instruct"
    assert refs["pypi:vllm"]["version"] == recipe.engine.version
    assert set(found["dependencies"][0]["dependsOn"]) == set(refs)
    assert found == json.loads(files["sbom.json"])


def test_an_image_is_named_by_digest_and_tag(recipe):
    image = ImageLock(reference="vllm/vllm-openai:v0.32.0", digest=f"sha256:{'ab' * 32}")
    lock = recipe.lock.model_copy(update={"image": image})
    found = sbom(recipe.model_copy(update={"lock": lock}))
    (container,) = [each for each in found["components"] if each["type"] == "container"]
    assert container["purl"].startswith("pkg:oci/vllm-openai@sha256%3Aabab")
    assert container["purl"].endswith("tag=v0.32.0")
    assert container["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]


def test_a_folder_is_not_named_by_its_path(tmp_path, tiny_config):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    work = {"input_tokens": 64, "output_tokens": 64}
    found = make_recipe(make_request(str(tmp_path), "h100-sxm", 1, workload=work))
    assert str(tmp_path) not in json.dumps(sbom(found))
