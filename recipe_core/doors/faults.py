"""Faults of our own: the log has the traceback, whoever asked a number under which it is there."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("recipe_builder")


def note_fault(error: Exception, where: str) -> str:
    """Log an unexpected error; the number under which the log has it."""
    number = secrets.token_hex(4)
    log.error("error %s in %s", number, where, exc_info=error)
    return number


def fault_json(error: Exception, where: str) -> dict[str, Any]:
    """Log an unexpected error, and say so as the API says errors, without a word of it."""
    number = note_fault(error, where)
    return {
        "error": {
            "code": "server",
            "field": None,
            "message": "something failed, and it is not your fault.",
            "hint": f"The server's log has the details under {number}.",
        }
    }


class FaultsTold:
    """Answers requests with JSON whose handling fails unexpectedly.

    Args:
        app: what handles them.
        where: its name in the log.
    """

    def __init__(self, app: ASGIApp, where: str) -> None:
        self._app, self._where = app, where

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await JSONResponse(fault_json(error, self._where), 500)(scope, receive, send)
