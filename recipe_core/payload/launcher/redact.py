"""Takes secrets, people and prompts out of texts that leave the machine."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import pwd
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from re import Match

_DATA: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("secret_forms.json").read_text(encoding="utf-8")
)
_PATTERNS = {kind: re.compile(form) for kind, form in _DATA["forms"].items()}
# ``user:password`` in base 64: of a header, and of Docker's ``config.json``
_BASIC = re.compile(
    r"(?P<kept>\b[Bb]asic\s{1,9}|\"auth\"\s{0,9}:\s{0,9}\")(?P<value>[A-Za-z0-9+/]{6,400}={0,2})"
)
_NAMED_SECRET = re.compile(
    r"(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]{0,80})[\"']?"
    r"(?P<sign>=|\s{0,3}[:=]\s{0,3})[\"']?"
)
# A variable, an option or a field, and its value; a placeholder is none.
_VALUE = re.compile(r"[^\s,;}\]\"'$<{]{1,4000}")
_EMPTY_SECRETS = frozenset({"none", "null", "true", "false", "[redacted"})

_BY_NAME = {role: re.compile(form, re.IGNORECASE) for role, form in _DATA["names"].items()}
# What nothing but a secret is called.
_SECRET_NAMES = _BY_NAME["always"]
# What secrets are called, and settings too, whose values are plain words.
_OFTEN, _SETTING = _BY_NAME["often"], _BY_NAME["setting"]
# What many things are called; a secret is one of random letters.
_KEYS = _BY_NAME["keys"]
# What settings about secrets are called: HF_HUB_DISABLE_IMPLICIT_TOKEN=1; and pieces of texts.
_SWITCH, _PIECE_OF_TEXT = _BY_NAME["switch"], _BY_NAME["piece_of_text"]
_REFERENCES = frozenset({"token_secret", "api_key_secret"})  # the name of a secret, not the secret
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RANDOM = re.compile(r"[A-Za-z0-9+/_.=-]{16,}")
# Bits of entropy per letter from which a text counts as random; a long key in hex has nearly 4.
_RANDOM_BITS = 3.0


def secret_kind(text: str) -> str | None:
    """Say what kind of secret is in a text; None where there is none of a known form."""
    for kind, pattern in _PATTERNS.items():
        if pattern.search(text):
            return kind
    if any(_is_name_and_password(match["value"]) for match in _BASIC.finditer(text)):
        return "an authorization header"
    if any(sign == "=" and end - start > 2 for start, end, sign in _find_named_secrets(text)):
        return "a secret"
    return None


def _find_named_secrets(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _NAMED_SECRET.finditer(text):
        name = _last_name(match["name"])
        if not any(form.search(name) for form in (_SECRET_NAMES, _OFTEN, _KEYS)):
            continue
        value = _VALUE.match(text, match.end())
        if value is None or value[0].startswith("/") or value[0].lower() in _EMPTY_SECRETS:
            continue
        if called_secret(match["name"], value[0]):
            yield *value.span(), match["sign"]


def hide_secrets(text: str, hidden: str) -> tuple[str, int]:
    """A text with ``hidden`` in place of every secret of a known form, and how many there were."""
    count = 0

    def by(wrong: Callable[[re.Match[str]], bool]) -> Callable[[re.Match[str]], str]:
        def replaced(match: re.Match[str]) -> str:
            nonlocal count
            if hidden in match[0] or not wrong(match):
                return match[0]
            count += 1
            return f"{match.groupdict().get('kept') or ''}{hidden}"

        return replaced

    for pattern in _PATTERNS.values():
        text = pattern.sub(by(lambda _: True), text)
    text = _BASIC.sub(by(lambda match: _is_name_and_password(match["value"])), text)
    parts, at = [], 0
    for start, end, _ in _find_named_secrets(text):
        if start >= at:  # else it is part of one that is hidden
            parts += [text[at:start], hidden]
            at, count = end, count + 1
    return "".join([*parts, text[at:]]), count


def called_secret(field: str, text: str) -> bool:
    """Return whether a text is a secret by the name of its field, the last of a dotted one."""
    name = _last_name(field)
    if not text or name in _REFERENCES or _PIECE_OF_TEXT.search(name):
        return False
    if _SECRET_NAMES.search(name):
        return not (_SWITCH.search(name) and _SETTING.fullmatch(text))
    if _OFTEN.search(name):
        return not _SETTING.fullmatch(text)
    return _KEYS.search(name) is not None and _is_random(text)


def _last_name(field: str) -> str:
    """``api_key`` of ``options.apiKey``."""
    return _CAMEL.sub("_", field.rpartition(".")[2].replace("-", "_"))


def always_secret(name: str) -> bool:
    """Return whether nothing but a secret is called so."""
    return _SECRET_NAMES.search(name) is not None


def _is_name_and_password(text: str) -> bool:
    """Return whether a text is the ``user:password`` of an authorization header."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode().isprintable()


def _is_random(text: str) -> bool:
    """Return whether letters and digits look drawn at random: no word, no path, no number."""
    if not _RANDOM.fullmatch(text) or text.startswith(("/", ".")) or text.count("/") > 2:
        return False
    if not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    return bits >= _RANDOM_BITS


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
