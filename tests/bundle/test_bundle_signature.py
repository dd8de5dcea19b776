"""Signatures: good ones, bad ones, another's; and what bundles say they pull."""

import json

import pytest

from recipe_core.base.documents import write_whole
from recipe_core.base.errors import BundleError
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, new_key, sign_manifest
from recipe_core.bundle.verify import read_bundle, unpack_bundle
from recipe_core.bundle.write import bundle_files, bundle_sbom, write_bundle, zip_bytes
from recipe_core.recipe.lock import ImageLock
from tests.fixtures.recipes import recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table

pytest.importorskip("cryptography", reason="needs cryptography (the extra 'sign')")


@pytest.fixture(scope="module")
def keys():
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
    other = {"public_key": new_key()[1], "kind": BundleError}
    assert "not by the one given" in str(refusal(unpack_bundle, tmp_path / "b.zip", **other))
    assert not (tmp_path / "b").exists()
    assert read_bundle(unpack_bundle(tmp_path / "b.zip", public_key=public), public).signed.trusted


def test_signing_is_deterministic_and_keeps_the_key(recipe, files, keys, tmp_path):
    assert zip_bytes(recipe, keys[0]) == zip_bytes(recipe, keys[0])
    signed = bundle_files(recipe, keys[0])
    assert signed[MANIFEST] == files[MANIFEST]
    assert b"".join(keys[0].splitlines()[1:-1]) not in b"".join(signed.values())
    write_whole(tmp_path / "k.pem", keys[0], private=True)
    assert (tmp_path / "k.pem").stat().st_mode & 0o077 == 0  # its owner's alone


def test_a_missing_foreign_or_damaged_signature_is_one_error(folder, keys):
    """Files and manifest that agree with each other do not help without the key."""
    assert read_bundle(folder).signed is None
    assert "not signed" in str(refusal(read_bundle, folder, keys[1], kind=BundleError))
    other = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)
    (folder / SIGNATURE).write_bytes(bundle_files(other, keys[0])[SIGNATURE])
    for public in (None, keys[1]):
        assert "does not belong" in str(refusal(read_bundle, folder, public, kind=BundleError))
    texts = [json.dumps(document).encode() for document in table("bundle", "signatures")]
    for text in (b"", b"{}", b"[]", b"\xff", *texts):
        (folder / SIGNATURE).write_bytes(text)
        with pytest.raises(BundleError, match=r"signature|SIGNATURE"):
            read_bundle(folder)


def test_what_is_no_key_or_of_another_kind_or_encrypted_is_refused(recipe, keys, tmp_path):
    signed = write_bundle(recipe, tmp_path / "b.zip", keys[0])
    for key in (b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        assert "private key" in str(refusal(sign_manifest, b"manifest", key))
        assert "public key" in str(refusal(read_bundle, signed, key))
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    form = (forms.Encoding.PEM, forms.PrivateFormat.PKCS8)
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(*form, forms.NoEncryption())
    assert "not an ed25519 key" in str(refusal(sign_manifest, b"m", other))
    locked = ed25519.Ed25519PrivateKey.generate()
    encrypted = locked.private_bytes(*form, forms.BestAvailableEncryption(b"p"))
    assert "encrypted" in str(refusal(sign_manifest, b"m", encrypted))


def test_the_bill_names_what_is_pulled(recipe, files):
    found = bundle_sbom(recipe)
    refs = {each["bom-ref"]: each for each in found["components"]}
    assert refs["model"]["purl"] == "pkg:huggingface/meta-llama/Llama-3.1-70B-Instruct"
    assert refs["pypi:vllm"]["version"] == recipe.engine.version
    assert set(found["dependencies"][0]["dependsOn"]) == set(refs)
    assert found == json.loads(files["sbom.json"])
    # an image is named by digest and tag
    image = ImageLock(reference="vllm/vllm-openai:v0.32.0", digest=f"sha256:{'ab' * 32}")
    lock = recipe.lock.model_copy(update={"image": image})
    found = bundle_sbom(recipe.model_copy(update={"lock": lock}))
    (container,) = [each for each in found["components"] if each["type"] == "container"]
    assert container["purl"].startswith("pkg:oci/vllm-openai@sha256%3Aabab")
    assert container["purl"].endswith("tag=v0.32.0")
    assert container["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
