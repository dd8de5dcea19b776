"""Uploaded or pasted files, which are untrusted: checked to be text before they are parsed."""

from __future__ import annotations

from recipe_core.base.errors import InputError

# First bytes of pickles, zips, GGUF, NumPy arrays and gzip.
_BINARY = (b"\x80", b"PK", b"GGUF", b"\x93NUMPY", b"\x1f\x8b")


def read_upload_text(
    data: bytes, name: str, limit: int, expected: str, error: type[InputError], field: str
) -> str:
    """The text of a file of at most ``limit`` bytes; ``expected`` describes it in the hint.

    Raises:
        InputError: of the class ``error``, when it is too large or not text.
    """
    hint = f"Upload {expected}."
    if len(data) > limit:
        message = f"{name} has {len(data):,} bytes; the limit is {limit:,}."
        raise error(message, field=field, hint=hint)
    if data.startswith(_BINARY) or b"\x00" in data[:1024]:
        raise error(f"{name} is not text.", field=field, hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{name} is not UTF-8 text.", field=field, hint=hint) from None
