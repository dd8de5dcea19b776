"""Hostile bundles: how they are made and written down, and hostile documents in them."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, new_key, sign_manifest
from tests.fixtures.hostile import hostile

Files = dict[str, bytes]
DEFLATED = zipfile.ZIP_DEFLATED


@dataclass(frozen=True)
class Material:
    """What makers start from: bundles that are fine, and the key that signed them."""

    bundles: tuple[Files, ...]
    private: bytes
    public: bytes


@dataclass(frozen=True)
class Hostile:
    """One bundle on disk. ``key``: the public key that it is checked against, if any.

    ``original``: what the author wrote. ``sealed``: the manifest was made anew, so that digests
    match whatever is in it.
    """

    path: Path
    original: Files
    key: bytes | None = None
    sealed: bool = False


@dataclass
class Draw:
    """What a maker draws from and writes to: ``files`` are those of one of the bundles."""

    r: random.Random
    place: Path
    material: Material
    index: int

    def __post_init__(self) -> None:
        self.files = dict(self.r.choice(self.material.bundles))

    def key(self) -> bytes | None:
        return self.r.choice((None, self.material.public))

    def zip(self, data: bytes, key: bytes | None = None, *, sealed: bool = False) -> Hostile:
        path = self.place / "b.zip"
        path.write_bytes(data)
        return Hostile(path, self.files, key, sealed)

    def packed(self, files: Files, *, sealed: bool = True, method: int = DEFLATED) -> Hostile:
        return Hostile(pack(files, self.place / "b.zip", method), self.files, sealed=sealed)

    def either(self, files: Files, key: bytes | None, *, sealed: bool = False) -> Hostile:
        zipped = self.r.random() < 0.5
        path = pack(files, self.place / "b.zip") if zipped else lay(files, self.place / "b")
        return Hostile(path, self.files, key, sealed)


Maker = Callable[[Draw], Hostile]


def seal(files: Mapping[str, Any]) -> Files:
    """The files with a manifest made anew, as anybody can."""
    listed = {name: data for name, data in files.items() if name not in (MANIFEST, SIGNATURE)}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(listed.items())}
    about = {"schema_version": 1, "recipe": "sealed", "recipe_digest": "0" * 64}
    manifest = {**about, "files": digests}
    return {**listed, MANIFEST: json.dumps(manifest).encode()}


def lay(files: Mapping[str, bytes], folder: Path) -> Path:
    """The files as a folder, with a run as of an earlier start in it."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    keep = folder / "run" / "checkpoints" / "step-1" / "weights"
    keep.parent.mkdir(parents=True, exist_ok=True)
    keep.write_bytes(b"precious")
    return folder


def pack(files: Mapping[str | zipfile.ZipInfo, bytes], path: Path, method: int = DEFLATED) -> Path:
    """The files as a zip, whatever they are called."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name) if isinstance(name, str) else name
            info.compress_type = method
            archive.writestr(info, data)
    path.write_bytes(buffer.getvalue())
    return path


def mutate(random_: random.Random, data: bytes) -> bytes:
    """A few random changes: a bit, a byte, a piece moved, doubled, cut or made up."""
    out = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 8))):
        at = random_.randrange(len(out) + 1)
        length = random_.choice((1, 1, 2, 4, 64, 1024))
        kind = random_.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random_.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = random_.choice((0, 0xFF, 0x7F, random_.randrange(256)))
        elif kind == 2:
            out[at:at] = random_.randbytes(length)
        elif kind == 3:
            del out[at : at + length]
        elif kind == 4:
            out[at:at] = out[: random_.randrange(1, 2048)]
        else:
            out[at : at + length] = random_.randbytes(length)
    return bytes(out)


VALUES = [
    *hostile("values"),
    *(10**400, "é" * 999, "x" * 100_000, [0] * 5000, {str(n): n for n in range(5000)}),
]
"""Plain values as nobody means them."""
NAMES = hostile("names")
DOCUMENTS = [text.encode("latin-1") for text in hostile("documents")]


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain values, by the keys that lead there."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*here, key)
            yield from places(inner, (*here, key))


def edit(r: random.Random, value: Any) -> Any:
    """Plain values with one to three places replaced, removed or added to."""
    out = copy.deepcopy(value)
    for _ in range(r.choice((1, 1, 2, 3))):
        if not (spots := [*places(out)]):
            break
        *path, key = r.choice(spots)
        owner = reduce(getitem, path, out)
        kind, odd = r.randrange(8), copy.deepcopy(r.choice(VALUES))
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, dict):
            owner[str(r.choice(VALUES))[:50]] = odd
        else:
            owner[key] = r.choice((odd, odd, odd, [odd], {"a": odd}))
    return out


def odd_manifest(draw: Draw) -> Hostile:
    r, files = draw.r, draw.files
    manifest = json.loads(files[MANIFEST])
    kind = draw.index % 4
    if kind == 0:
        data = DOCUMENTS[draw.index // 4 % len(DOCUMENTS)]
    elif kind == 1:
        data = json.dumps(edit(r, manifest)).encode(errors="replace")
    elif kind == 2:
        name = r.choice(NAMES)
        manifest["files"][name] = r.choice(("0" * 64, hashlib.sha256(b"x").hexdigest(), "Z" * 64))
        data = json.dumps(manifest).encode(errors="replace")
    else:
        first = f'"launch.py": "{"0" * 64}", '.encode()
        data = files[MANIFEST].replace(b'"files": {', b'"files": {' + first)
    return draw.either({**files, MANIFEST: data}, draw.key(), sealed=True)


def odd_recipe(draw: Draw) -> Hostile:
    """A recipe.yaml that costs more than it weighs, or that nobody wrote."""
    start = draw.files["recipe.yaml"]
    texts = [text.encode().replace(b"START", start) for text in hostile("recipes")]
    texts += [
        b"".join(b"%d: 1\n" % (n * (2**61 - 1)) for n in range(20_000)),  # all of one hash
        start.decode().encode("utf-16"),
        start.replace(b"request:", b"request: !!set"),
        start.replace(b": ", b":\t", 40),
    ]
    return draw.packed(seal({**draw.files, "recipe.yaml": texts[draw.index % len(texts)]}))


def recipe_values(draw: Draw) -> Hostile:
    values = edit(draw.r, parse_yaml(draw.files["recipe.yaml"].decode()))
    try:
        text = to_yaml(values).encode()
    except UnicodeError:
        text = json.dumps(values).encode()
    return draw.packed(seal({**draw.files, "recipe.yaml": text}))


PARTS = ("candidate", "variants", "lock", "parameters", "estimate", "device", "request")


def recipe_parts(draw: Draw) -> Hostile:
    """Random values in one part of a recipe; in every second one in a fallback, or in its split."""
    values = parse_yaml(draw.files["recipe.yaml"].decode())
    owner, name = values, PARTS[draw.index // 2 % len(PARTS)]
    if draw.index % 2:
        owner, name = values["fallbacks"], draw.r.randrange(len(values["fallbacks"]))
        if draw.index % 4 == 1:
            owner, name = owner[name], "candidate"
    owner[name] = edit(draw.r, owner[name])
    text = json.dumps(values).encode(errors="replace")
    return draw.packed(seal({**draw.files, "recipe.yaml": text}))


def launch_values(draw: Draw) -> Hostile:
    """Random values in what the launcher reads: launch.json, expected.json, train.json."""
    r, files = draw.r, draw.files
    name = r.choice(("launch.json", "launch.json", "expected.json"))
    if draw.index % 10 == 0:
        data = r.choice(DOCUMENTS)
    else:
        data = json.dumps(edit(r, json.loads(files[name]))).encode(errors="replace")
    return Hostile(lay(seal({**files, name: data}), draw.place / "b"), files, sealed=True)


def keys(draw: Draw) -> Hostile:
    """Signatures that are missing, foreign, of something else, or no signatures."""
    r, files, public = draw.r, draw.files, draw.material.public
    mine = sign_manifest(files[MANIFEST], draw.material.private)
    document = json.loads(mine)
    draw.files = {**files, SIGNATURE: mine}
    other_private, other_public = new_key()
    other = seal({**files, "launch.py": b"import os\n"})
    foreign = sign_manifest(other[MANIFEST], other_private)
    forged = json.loads(foreign) | {"public_key": document["public_key"]}
    algorithm = r.choice(("none", "", "rsa", "ED25519", None, "hs256"))
    ended = document["signature"][:-4] + "AAA="
    worded = {**files, MANIFEST: json.dumps(json.loads(files[MANIFEST])).encode()}
    odd_key = r.choice((b"", b"x", draw.material.private, mutate(r, public), b"-" * 60_000))
    parts, signature, key = (
        (files, None, public),  # stripped
        (other, None, public),  # stripped and sealed anew
        (other, foreign, public),  # sealed anew, and signed by somebody else
        (other, mine, public),  # the author's signature of another manifest
        (files, document | {"algorithm": algorithm}, public),
        (other, forged, public),  # the given key is named, another one signed
        (files, mutate(r, mine), public),
        (files, edit(r, document), public),
        (worded, mine, public),  # the same manifest in other words
        (files, mine, other_public),
        (files, mine, odd_key),
        (files, document | {"signature": ended, "extra": {"signature": ended}}, public),
    )[draw.index % 12]
    signed = {name: data for name, data in parts.items() if name != SIGNATURE}
    if signature is not None:
        is_document = not isinstance(signature, bytes)
        signed[SIGNATURE] = json.dumps(signature).encode() if is_document else signature
    return draw.either(signed, key, sealed=parts is not files)
