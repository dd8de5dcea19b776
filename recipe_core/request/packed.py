"""Plain values as one short text that a link carries: JSON, compressed, in letters that URLs keep.

``~1.`` names the version; then the bytes of a zlib stream (RFC 1950) at level 9, in base64url
(RFC 4648) without padding. The stream begins with a dictionary of texts that requests, profiles and
configs repeat. The dictionary belongs to the version: another one is another version, because links
must be read for years. The stream's checksums find what was cut off or changed on the way. No
model, device or file name has the form of such a text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import InputError

VERSION = 1
# Characters of a packed text that is read.
MAX_TEXT = 64 << 10
# Bytes of JSON that a packed text may become: a stream of zeros grows a thousandfold.
MAX_UNPACKED = 512 << 10
# Characters of JSON, as a link writes them, that stay as they are: people read and edit links.
LEGIBLE = 600

_FORM = re.compile(r"~(\d{1,9})\.([A-Za-z0-9_-]*)")
_LOOKS = re.compile(r"~\d{1,9}\.")

# Texts of configs, profiles and kept choices; what is most frequent stands last: near matches take
# fewer bits. Links of before are read with it, so the file never changes.
_DICTIONARY = Path(__file__).with_name(f"packed_v{VERSION}.txt").read_bytes()


def pack_values(value: Any) -> str:
    """Plain values as a packed text; a number that is not finite becomes null."""
    return _pack_text(compact(value))


def compact(value: Any) -> str:
    """Plain values as JSON without a needless character."""
    return json.dumps(json.loads(to_json(value)), separators=(",", ":"), ensure_ascii=False)


def shorter(value: Any) -> str:
    """Plain values as JSON, or packed where that is shorter in a link and JSON is a long read."""
    plain = compact(value)
    if len(quote_plus(plain)) <= LEGIBLE:
        return plain
    return min(plain, _pack_text(plain), key=lambda text: len(quote_plus(text)))


@lru_cache(maxsize=256)
def _pack_text(text: str) -> str:
    press = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=_DICTIONARY)
    data = press.compress(text.encode()) + press.flush()
    return f"~{VERSION}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def is_packed(text: str) -> bool:
    return _LOOKS.match(text) is not None


def unpack_values(text: str, name: str = "the packed text") -> Any:
    """The plain values of a packed text; ``name`` stands for it in errors.

    Raises:
        InputError: when it is of another version, cut off, changed or too large, and for what
            ``parse_json`` refuses.
    """
    if len(text) > MAX_TEXT:
        raise InputError(f"{name} has {len(text):,} characters; the limit is {MAX_TEXT:,}.")
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(f"{name} is not a packed text.", hint="Copy the whole link.")
    if int(form[1]) != VERSION:
        raise InputError(
            f"{name} is packed in version {form[1]}; this builder reads version {VERSION}.",
            hint="Open the link in the builder that made it.",
        )
    return parse_json(_inflated(form[2], name), name)


def _inflated(text: str, name: str) -> str:
    damaged = InputError(
        f"{name} was cut off or changed on the way.", hint="Copy the whole link again."
    )
    stream = zlib.decompressobj(zlib.MAX_WBITS, zdict=_DICTIONARY)
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        data = stream.decompress(packed, MAX_UNPACKED + 1)
    except (zlib.error, binascii.Error):
        raise damaged from None
    if len(data) > MAX_UNPACKED:
        raise InputError(f"{name} becomes more than {MAX_UNPACKED:,} bytes.")
    if not stream.eof or stream.unused_data:
        raise damaged
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise damaged from None
