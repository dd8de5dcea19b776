"""How servers are asked: the part ``api`` of ``launch.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol

from .fields import Fields

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Fills(Protocol):
    """What fills placeholders in texts and in JSON."""

    def text(self, template: str) -> str: ...

    def json(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Api:
    """The API of a server: path, name of the model, and fields added to every body.

    ``key_variable``: the environment variable with the API key that servers ask for, None where
    they know none; ``key_needed``: whether nothing may be started without one.
    """

    path: str
    model: str
    body: dict[str, Any]
    key_variable: str | None = None
    key_needed: bool = False


def read_api(fields: Fields, fill: Fills) -> Api:
    """The API as ``launch.json`` states it, with placeholders filled.

    Raises:
        InputError: for a field that is not what it should be.
    """
    path, variable = fields.text("path"), fields.optional_text("key_variable")
    if not path.startswith("/"):
        raise fields.fail("path", "a path that starts with /")
    if variable is not None and not _VARIABLE.fullmatch(variable):
        raise fields.fail("key_variable", "the name of a variable")
    return Api(
        path,
        fill.text(fields.text("model")),
        fill.json(fields.child("body", optional=True).data),
        variable,
        fields.data.get("key_needed") is True,
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
