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


@dataclass(frozen=True)
class Material:
    """What makers start from: bundles that are fine, and the key that signed them."""

    bundles: tuple[Files, ...]
    private: bytes
    public: bytes

    def files(self, random_: random.Random) -> Files:
        """The files of a bundle, to change."""
        return dict(random_.choice(self.bundles))


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


Maker = Callable[[random.Random, Path, Material, int], Hostile]


def seal(files: Mapping[str, Any], recipe: str = "sealed") -> Files:
    """The files with a manifest made anew, as anybody can."""
    listed = {name: data for name, data in files.items() if name not in (MANIFEST, SIGNATURE)}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(listed.items())}
    manifest = {
        "schema_version": 1,
        "recipe": recipe,
        "recipe_digest": "0" * 64,
        "files": digests,
    }
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


def pack(files: Mapping[str | zipfile.ZipInfo, bytes], path: Path, **settings: Any) -> Path:
    """The files as a zip, whatever they are called."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", settings.pop("compression", zipfile.ZIP_DEFLATED)) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name) if isinstance(name, str) else name
            info.compress_type = settings.get("method", info.compress_type or zipfile.ZIP_DEFLATED)
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
