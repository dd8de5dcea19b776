"""What makers of hostile bundles share: material, changes at random, and how to write them down."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.signing import SIGNATURE

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
        """The public key, or none."""
        return self.r.choice((None, self.material.public))

    def zip(self, data: bytes, key: bytes | None = None, *, sealed: bool = False) -> Hostile:
        """An archive of these bytes."""
        path = self.place / "b.zip"
        path.write_bytes(data)
        return Hostile(path, self.files, key, sealed)

    def packed(self, files: Files, *, sealed: bool = True, method: int = DEFLATED) -> Hostile:
        """An archive of these files."""
        return Hostile(pack(files, self.place / "b.zip", method), self.files, sealed=sealed)

    def either(self, files: Files, key: bytes | None, *, sealed: bool = False) -> Hostile:
        """A folder or an archive of these files."""
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


def odd_value(r: random.Random, depth: int = 0) -> Any:
    """Plain values as nobody means them."""
    simple: tuple[Any, ...] = (
        *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, -(10**30), 1e308, -0.0, 1e-320, 0.5),
        *("", "x", "../../outside", "/etc/passwd", "${HOME}", "$(id)", "a\0b", "\n", "x" * 5000),
        *(
            "-1",
            "NaN",
            "\u202e",
            "{{ 1 }}",
            "${model}",
            "${node99}",
            "0" * 64,
            "<b>x</b>",
            "\ud7ff",
        ),
    )
    kind = r.randrange(6)
    if kind < 4 or depth > 2:
        return r.choice(simple)
    if kind == 4:
        return [odd_value(r, depth + 1) for _ in range(r.randrange(4))]
    return {str(r.choice(simple)): odd_value(r, depth + 1) for _ in range(r.randrange(4))}


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in plain values."""
    items: list[Any] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [each for k, v in items for each in [(*here, k), *places(v, (*here, k))]]


def edit(r: random.Random, value: Any) -> Any:
    """Plain values with one to three places replaced, removed or added to."""
    out = copy.deepcopy(value)
    for _ in range(r.choice((1, 1, 2, 3))):
        spots = places(out)
        if not spots:
            break
        path = r.choice(spots)
        at = out
        for step in path[:-1]:
            at = at[step]
        kind = r.randrange(8)
        if kind == 0:
            del at[path[-1]]
        elif kind == 1 and isinstance(at, dict):
            at[str(odd_value(r, 9))] = odd_value(r)
        else:
            at[path[-1]] = odd_value(r)
    return out
