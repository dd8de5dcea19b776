"""Takes secrets, people and prompts out of texts that leave the machine."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from re import Match

from .secret_forms import always_secret, called_secret, hide_secrets

HIDDEN = "[redacted]"
_NAMES = (
    r"(?:[\w.-]{0,60}(?:passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|private[_-]?key|credentials?|authorization|cookie)"
    # `token` alone or as in HF_TOKEN; not bos_token, max_tokens or tokenizer
    r"|(?:[\w.-]{0,60}(?:auth|access|api|hf|hub|bearer|refresh|session|github|gitlab|wandb|builder"
    r"|secret|security|jwt)[_-])?token)"
)
_NAMED = re.compile(rf"(?i)\b{_NAMES}\Z")
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}",
    re.DOTALL,
)
_ADDRESS = re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]{0,30}://)[^\s/@'\"]{1,400}@")
_QUERY = re.compile(r"(?i)(?P<kept>[?&](?:sig|signature|x-amz-[\w-]+|key|token|code)=)[^&\s'\"]+")
_PAIR = re.compile(
    rf"(?i)(?P<kept>(?:--)?\b{_NAMES}[\"']?\s*(?:[:=]|,(?=\s*[\"']))\s*(?:Bearer\s+)?)"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s,;}\]\"']+)"
)
_OPTION = re.compile(
    rf"(?i)(?P<kept>--{_NAMES}[\"']?[\s,]+[\"']?)(?P<value>[^\s\"',\[\]-][^\s\"',\]]*)"
)
_NOTHING = frozenset({"none", "null", "true", "false", "", HIDDEN})
_PROMPT = re.compile(
    r"(?P<kept>\b(?:prompt|content|messages|input_text|inputs)[\"']?\s*[:=]\s*)"
    r"(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\[.*\])"
)
_HOMES = re.compile(r"(?P<kept>/(?:home|Users)/)[^/\s'\":,;)\]}]+")
_COMMON = frozenset({"root", "user", "admin", "ubuntu", "runner", "localhost", "docker", "nobody"})
_SHORTEST_SECRET, _LONGEST_NUMBER = 6, 12


class Redactor:
    """Replaces what it knows as secret; ``count`` is how often it did.

    Beside what looks like a secret it replaces the values of this process's own variables that are
    named like one, wherever they occur; the home folder, and the names of user and machine.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self.count = 0
        self._values = sorted(
            (value for name, value in variables.items() if _is_own_secret(name, value)),
            key=len,
            reverse=True,
        )
        home = variables.get("HOME", "").rstrip("/")
        self._home = re.compile(rf"{re.escape(home)}(?![\w.-])") if len(home) > 1 else None
        names = {*_users(variables)} - _COMMON
        self._user = _compile_names({name for name in names if len(name) > 2})
        machine = socket.gethostname()
        hosts = {machine, machine.partition(".")[0]} - _COMMON
        self._host = _compile_names({name for name in hosts if len(name) > 2})

    def text(self, text: str, *, of_log: bool = False) -> str:
        """A text without secrets; of a log also without the prompts that some engines write."""
        for value in self._values:
            text = self._literal(text, value)
        text = self._sub(_PRIVATE, HIDDEN, text)
        text = self._sub(_ADDRESS, rf"\g<kept>{HIDDEN}@", text)
        text = self._sub(_QUERY, rf"\g<kept>{HIDDEN}", text)
        text = _PAIR.sub(self._pair, text)
        text = _OPTION.sub(self._pair, text)
        text, secrets = hide_secrets(text, HIDDEN)
        self.count += secrets
        if of_log:
            text = self._sub(_PROMPT, rf"\g<kept>{HIDDEN}", text)
        for pattern, name in ((self._home, "~"), (self._user, "USER"), (self._host, "HOST")):
            if pattern is not None:
                text = pattern.sub(name, text)
        return _HOMES.sub(r"\g<kept>USER", text)

    def _literal(self, text: str, value: str) -> str:
        self.count += text.count(value)
        return text.replace(value, HIDDEN)

    def _sub(self, pattern: re.Pattern[str], replacement: str, text: str) -> str:
        text, changes = pattern.subn(replacement, text)
        self.count += changes
        return text

    def _pair(self, match: Match[str]) -> str:
        value = match["value"]
        quote = value[0] if value[0] in "\"'" else ""
        if value.strip("\"'").casefold() in _NOTHING:
            return match[0]
        self.count += 1
        return f"{match['kept']}{quote}{HIDDEN}{quote}"


def is_secret_name(name: str) -> bool:
    return _NAMED.search(name) is not None or always_secret(name)


def _is_own_secret(name: str, value: str) -> bool:
    is_number = value.isdigit() and len(value) < _LONGEST_NUMBER
    is_secret = is_secret_name(name) or called_secret(name, value)
    return is_secret and len(value) >= _SHORTEST_SECRET and not is_number


def _users(variables: Mapping[str, str]) -> list[str]:
    names = [variables.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
    with suppress(KeyError):
        names.append(pwd.getpwuid(os.getuid()).pw_name)
    return [*names, Path(variables.get("HOME", "")).name]


def _compile_names(names: set[str]) -> re.Pattern[str] | None:
    if not names:
        return None
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(longest)})(?![\w-])")
