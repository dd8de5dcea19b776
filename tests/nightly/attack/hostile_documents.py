"""Hostile documents in bundles: manifests, recipes, launches and signatures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.signing import SIGNATURE, new_key, sign
from tests.nightly.attack.hostile_archives import NAMES
from tests.nightly.attack.hostile_bundles import Draw, Hostile, edit, lay, mutate, seal

JSON_TEXTS = (
    *(b"", b"{", b"[]", b"null", b"0", b'""', b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"NaN", b"{}{}"),
    *(
        b"[" * 100_000,
        b'{"files":' * 50_000,
        b"9" * 100_000,
        b'{"files": {"a": ' + b"9" * 9_999 + b"}}",
    ),
    *(
        b'{"files": {}}',
        b'{"files": []}',
        b'{"files": {"launch.py": null}}',
        b'{"files": {"": "x"}}',
    ),
    *(b'"' + b"\\ud800" * 1000 + b'"', b'{"\\ud800": 1}', b"\0" * 1000, b" " * 4_000_000 + b"{}"),
)


def odd_manifest(draw: Draw) -> Hostile:
    r, files = draw.r, draw.files
    manifest = json.loads(files[MANIFEST])
    kind = draw.index % 4
    if kind == 0:
        data = JSON_TEXTS[draw.index // 4 % len(JSON_TEXTS)]
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


def yaml_bomb(draw: Draw) -> Hostile:
    """A recipe.yaml that costs more than it weighs."""
    start = draw.files["recipe.yaml"]
    modulus = 2**61 - 1
    texts: tuple[Callable[[], bytes], ...] = (
        lambda: b"a: &a [x]\n" + b"".join(b"b%d: *a\n" % n for n in range(1000)),
        lambda: b"a: &a {b: *a}\n",
        lambda: b"[" * 100_000,
        lambda: b"{a: " * 100_000,
        lambda: b"- " * 100_000,
        lambda: start + b"".join(b"k%d: 1\n" % n for n in range(60_000)),
        lambda: start + b"x:\n" + b"".join(b"  k%d: 1\n" % n for n in range(60_000)),
        lambda: b"".join(b"%d: 1\n" % (n * modulus) for n in range(20_000)),
        lambda: b"x: " + b"1" * 1_000_000,
        lambda: b"x: 1" + b":59" * 200_000,
        lambda: b"x: !!binary " + b"A" * 1_000_000,
        lambda: b"x: !!python/object/apply:os.system ['touch outside']",
        lambda: b"x: !!timestamp 9999-99-99",
        lambda: b'x: "' + b"\\x41" * 900_000 + b'"',
        lambda: b"x: >\n" + b" a\n" * 900_000,
        lambda: b"? [a, b]\n: 1\n? {a: b}\n: 2\n",
        lambda: b"<<: [{a: 1}, {b: 2}]\n" * 1000,
        lambda: start + b"\n--- \n" * 1000,
        lambda: b"%YAML 9.9\n---\n" + start,
        lambda: "\ufeff".encode() + start,
        lambda: start.decode().encode("utf-16"),
        lambda: start.replace(b"request:", b"request: !!set"),
        lambda: b"x: .nan\ny: .inf\n" + start,
        lambda: start.replace(b": ", b":\t", 40),
    )
    text = texts[draw.index % len(texts)]()
    return draw.packed(seal({**draw.files, "recipe.yaml": text}))


def recipe_values(draw: Draw) -> Hostile:
    values = edit(draw.r, parse_yaml(draw.files["recipe.yaml"].decode()))
    try:
        text = to_yaml(values).encode()
    except UnicodeError:
        text = json.dumps(values).encode()
    return draw.packed(seal({**draw.files, "recipe.yaml": text}))


def launch_values(draw: Draw) -> Hostile:
    """Random values in what the launcher reads: launch.json, expected.json, train.json."""
    r, files = draw.r, draw.files
    name = r.choice([n for n in ("launch.json", "launch.json", "expected.json") if n in files])
    if draw.index % 10 == 0:
        data = r.choice(JSON_TEXTS)
    else:
        data = json.dumps(edit(r, json.loads(files[name]))).encode(errors="replace")
    return Hostile(lay(seal({**files, name: data}), draw.place / "b"), files, sealed=True)


def keys(draw: Draw) -> Hostile:
    """Signatures that are missing, foreign, of something else, or no signatures."""
    r, files, material = draw.r, draw.files, draw.material
    signed = {**files, SIGNATURE: sign(files[MANIFEST], material.private)}
    other_private, other_public = new_key()
    other = {**seal({**files, "launch.py": b"import os\n"})}
    kind = draw.index % 12
    key: bytes | None = material.public
    document = json.loads(signed[SIGNATURE])
    if kind == 0:  # stripped
        signed.pop(SIGNATURE)
    elif kind == 1:  # stripped and sealed anew
        signed = other
    elif kind == 2:  # sealed anew, and signed by somebody else
        signed = {**other, SIGNATURE: sign(other[MANIFEST], other_private)}
    elif kind == 3:  # the author's signature of another manifest
        signed = {**other, SIGNATURE: signed[SIGNATURE]}
    elif kind == 4:
        document["algorithm"] = r.choice(("none", "", "rsa", "ED25519", None, "hs256"))
        signed[SIGNATURE] = json.dumps(document).encode()
    elif kind == 5:  # the given key is named, another one signed
        forged = json.loads(sign(other[MANIFEST], other_private))
        forged["public_key"] = document["public_key"]
        signed = {**other, SIGNATURE: json.dumps(forged).encode()}
    elif kind == 6:
        signed[SIGNATURE] = mutate(r, signed[SIGNATURE])
    elif kind == 7:
        signed[SIGNATURE] = json.dumps(edit(r, document)).encode(errors="replace")
    elif kind == 8:  # the same manifest in other words
        signed[MANIFEST] = json.dumps(json.loads(signed[MANIFEST])).encode()
    elif kind == 9:
        key = other_public
    elif kind == 10:
        key = r.choice((b"", b"x", material.private, mutate(r, material.public), b"-" * 60_000))
    else:
        document["signature"] = document["signature"][:-4] + "AAA="
        document["extra"] = {"signature": document["signature"]}
        signed[SIGNATURE] = json.dumps(document).encode()
    draw.files = {**files, SIGNATURE: sign(files[MANIFEST], material.private)}
    return draw.either(signed, key, sealed=kind in (1, 2, 3, 5, 8))
