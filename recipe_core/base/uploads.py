"""What somebody uploads or pastes: read as text with suspicion, before anything is parsed."""

from __future__ import annotations

from recipe_core.base.errors import InputError

_BINARY = (b"\x80", b"PK", b"GGUF", b"\x93NUMPY", b"\x1f\x8b")
"""What pickles, zips, GGUF, arrays and gzip begin with."""


def text_of(
    data: bytes, name: str, most: int, wanted: str, error: type[InputError], field: str
) -> str:
    """The text of a file of at most ``most`` bytes; ``wanted``: what was asked for, as a fix says it.

    Raises:
        InputError: of the kind ``error``, when it is too large or not text; says which.
    """
    if len(data) > most:
        raise error(
            f"{name} has {len(data):,} bytes; at most {most:,} are read.",
            field=field,
            hint=f"Give {wanted}.",
        )
    if data.startswith(_BINARY) or b"\x00" in data[:1024]:
        raise error(f"{name} is not text.", field=field, hint=f"Give {wanted}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{name} is not UTF-8 text.", field=field, hint=f"Give {wanted}.") from None
