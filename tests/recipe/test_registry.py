"""Digests of images, asked of a registry that runs here: HTTPS, tokens, refusals."""

from __future__ import annotations

import datetime
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.recipe import registry
from recipe_core.recipe.registry import image_digest, place_of
from tests.conftest import request_values
from tests.fixtures.command_line import recipe

x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed")

MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TOKEN = "a-token-for-everybody"


def certificate(folder: Path) -> Path:
    """A certificate of 127.0.0.1 with its key, signed by itself."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "registry of tests")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(pem))
    return path


class Registry(BaseHTTPRequestHandler):
    """Public tags of ``vllm/engine``; how it answers is in the tag."""

    requests: ClassVar[list[tuple[str, str, str]]] = []

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/token":
            self.token()
        else:
            self.answer()

    def token(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        assert query["service"] == ["tests"]
        (scope,) = query["scope"]
        token = "" if "no-token" in scope else TOKEN
        self.reply(200, json.dumps({"token": token}).encode())

    def answer(self) -> None:
        self.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        *_, tag = self.path.split("/")
        realm = f"https://{self.headers['Host']}/token"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and tag != "open":
            realm = realm.replace("https", "http") if tag == "plain-token" else realm
            scope = f"repository:{'no-token' if tag == 'no-token' else 'vllm/engine'}:pull"
            bearer = f'Bearer realm="{realm}",service="tests",scope="{scope}"'
            asked = 'Basic realm="x"' if tag == "password" else bearer
            self.reply(401, b"", **{"WWW-Authenticate": asked})
            return
        accepts = self.headers["Accept"].split(", ")
        assert accepts[0] == "application/vnd.oci.image.index.v1+json"
        digest = DIGEST if tag in ("v1", "open") else "sha256:../../etc"
        headers = {} if tag == "no-header" else {"Docker-Content-Digest": digest}
        if tag in ("v1", "open", "no-header", "odd-header"):
            self.reply(200, MANIFEST, **headers)
        elif tag == "elsewhere":
            self.reply(307, b"", Location="https://127.0.0.1:1/v2/")
        else:
            self.reply(429 if tag == "often" else 404, b"")

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a registry whose certificate is trusted."""
    path = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    Registry.requests.clear()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_tag_has_a_digest(host):
    for tag in ("v1", "open", "no-header", "odd-header"):
        assert image_digest(f"{host}/vllm/engine:{tag}") == DIGEST
        method, path, authorization = Registry.requests[-1]
        assert path == f"/v2/vllm/engine/manifests/{tag}"
        assert method == ("GET" if "header" in tag else "HEAD")
        assert authorization == ("" if tag == "open" else f"Bearer {TOKEN}")


def test_what_a_registry_refuses_is_said(host, monkeypatch):
    for tag, message in {
        "gone": "status 404: there is no such tag",
        "often": "status 429: it was asked too often",
        "password": "it wants a password",
        "plain-token": "not https",
        "no-token": "it gives no token",
        "elsewhere": "status 307",
    }.items():
        with pytest.raises(NoAnswer, match=message) as caught:
            image_digest(f"{host}/vllm/engine:{tag}")
        assert TOKEN not in str(caught.value)
        assert caught.value.field == "lock.image"
    monkeypatch.setattr(registry, "MOST_MANIFEST_BYTES", 10)  # of a manifest without end
    with pytest.raises(NoAnswer, match="more than 10 bytes"):
        image_digest(f"{host}/vllm/engine:no-header")


def test_a_certificate_that_nobody_vouches_for_is_refused(host, monkeypatch, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(other)))
    with pytest.raises(NoAnswer, match="certificate"):
        image_digest(f"{host}/vllm/engine:v1")
    assert Registry.requests == []


def test_a_reference_is_an_address_or_refused():
    docker_hub = "registry-1.docker.io/v2"
    for reference, place in {
        "vllm/vllm-openai:v0.32.0": f"{docker_hub}/vllm/vllm-openai/manifests/v0.32.0",
        "ubuntu:24.04": f"{docker_hub}/library/ubuntu/manifests/24.04",
        "docker.io/a/b:1": f"{docker_hub}/a/b/manifests/1",
        "nvcr.io/nvidia/x/y:1.6.0": "nvcr.io/v2/nvidia/x/y/manifests/1.6.0",
        "localhost:5000/a:1": "localhost:5000/v2/a/manifests/1",
    }.items():
        assert place_of(reference).url == f"https://{place}"
    for reference in (
        "vllm/vllm-openai",
        "a/../b:1",
        "h.x/a:1/../..",
        "h.x@y/a:1",
        "h.x/A b:1",
        "",
    ):
        with pytest.raises(InputError, match="no image with a tag"):
            place_of(reference)


def test_the_lock_takes_the_digest_from_the_registry(host, tmp_path):
    """Without --online nobody is asked; a bundle written with it starts the image by digest."""
    bundle, pinned = str(tmp_path / "b.zip"), str(tmp_path / "pinned")
    image = f"{host}/vllm/engine:v1"
    request = tmp_path / "request.yaml"
    request.write_text(to_yaml(request_values()))
    built = recipe("build", str(request), "-o", bundle, "--set", f"image={image}")
    assert built.returncode == 0, built.stderr
    offline = recipe("lock", bundle, "--json")
    assert json.loads(offline.stdout)["image"]["digest"] is None
    assert "image.digest is missing" in offline.stderr
    assert "--online" in offline.stderr
    assert Registry.requests == []
    online = recipe("lock", bundle, "--online", "-o", pinned, "--json")
    assert json.loads(online.stdout)["image"] == {"reference": image, "digest": DIGEST}
    manifest = (Path(pinned) / "targets/kubernetes/deployment.yaml").read_text()
    assert f"{image}@{DIGEST}" in manifest
    checked = recipe("check", pinned, "--json")
    assert json.loads(checked.stdout)["ok"], checked.stdout
    assert recipe("lock", pinned).stderr == ""
    resolved = str(tmp_path / "amd.zip")
    moved = recipe("resolve", pinned, "--hardware", "mi300x:8", "-o", resolved)
    assert "wrote" in moved.stdout
    # the user's own image stays: only that of the engine is another one there
    assert json.loads(recipe("lock", resolved, "--json").stdout)["image"]["reference"] == image
    refused = recipe("lock", bundle, "-o", pinned)
    assert refused.returncode == 2
    assert "--online" in refused.stderr
