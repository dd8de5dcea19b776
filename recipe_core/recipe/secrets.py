"""Recipes and bundles hold no secrets.

A secret is recognised by its form, by its name, or because it is in this process's environment.
The forms are a table of our own: the scanners of the field are made for source code, know few
tokens of model providers, and take what stands beside ``token`` for one, as in dozens of options.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError

SHORTEST = 8
"""Shorter values of variables are not searched for in files: they occur by chance."""

# Every repetition has an upper bound: texts come from anybody, and may be megabytes.
_FORMS = {
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "an API key": (
        r"\b(?:sk|nvapi|xai|gsk|pplx|csk|rk_live|r8|fw|tgp_v1|rpa|wandb_v1|lsv2_(?:pt|sk))"
        r"[-_][A-Za-z0-9_-]{16,}"
    ),
    "a Google API key": r"\bAIza[A-Za-z0-9_-]{35}",
    "a Google token": r"\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{20,}",
    "a service account": r'"type"\s{0,9}:\s{0,9}"service_account"',
    "a GitHub token": r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{22,}",
    "a GitLab token": r"\bgl(?:pat|ptt|dt|rt|cbt|ft|soat|agent|oas|imt)-[A-Za-z0-9_-]{20,}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{30,}",
    "a PyPI token": r"\bpypi-[A-Za-z0-9_-]{32,}",
    "a Docker token": r"\bdckr_[po]at_[A-Za-z0-9_-]{20,}",
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "an Azure key": (
        r"\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=[^\s;]{16,}"
        r"|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="
    ),
    "a Databricks token": r"\bdapi[0-9a-f]{32}\b",
    "a DigitalOcean token": r"\bdo[opr]_v1_[0-9a-f]{40,}",
    "a Vault token": r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}",
    "a Grafana token": r"\bgl(?:sa|c)_[A-Za-z0-9_+/=]{32,}",
    "a Tailscale key": r"\btskey-[a-z]{1,20}-[A-Za-z0-9-]{12,}",
    "a SendGrid key": r"\bSG\.[A-Za-z0-9_-]{16,80}\.[A-Za-z0-9_-]{16,}",
    "a Twilio key": r"\bSK[0-9a-f]{32}\b",
    "a Telegram token": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "a Slack token": r"\bx(?:ox[abeoprs]|app)-[A-Za-z0-9-]{10,}",
    "a webhook": (
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/\w"
        r"|\bdiscord(?:app)?\.com/api/webhooks/[0-9]{1,30}/\w|\.webhook\.office\.com/\w"
    ),
    "a signed web token": r"\beyJ[\w-]{8,300}\.eyJ[\w-]{8}",
    "a private key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|\bAGE-SECRET-KEY-1[0-9A-Z]{20,}|\bPuTTY-User-Key-File-|\bb3BlbnNzaC1rZXktdj"
    ),
    "an authorization header": (
        r"(?i:\A\s{0,9}bearer[\s.:]\s{0,9}\S{3,}\s{0,9}\Z"
        r"|\bbearer\s{1,9}(?=[\w.~+/-]{0,60}[0-9])[\w.~+/-]{12,}"
        r"|\b(?:proxy-)?authorization\s{0,9}[:=]\s{0,9}(?:bearer|basic|token|digest)\s{1,9}\S)"
    ),
    "an address with a password": (
        r"\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]{0,200}:(?![$<{])[^\s/@]{1,200}@"
    ),
    "an address with a key": (
        r"(?i:[?&](?:[a-z]{1,20}[-_]){0,3}(?:token|api-?key|key|sig|signature|pass(?:word|wd)?"
        r"|secret|credential)=(?![$<{])[^&\s]{6})"
    ),
}
_PATTERNS = {kind: re.compile(form) for kind, form in _FORMS.items()}
_BASIC = re.compile(r"\b[Bb]asic\s{1,9}([A-Za-z0-9+/]{6,400}={0,2})")

_NAMES = re.compile(
    r"(?:^|_)(?:api_?keys?|secrets?|token|jwt|(?:access|private|secret|account|signing|encryption|"
    r"master|license|deploy|ssh|auth|session|storage|shared|host)_?key(?:_id)?|credentials?|"
    r"conn(?:ection)?_?str(?:ing)?|webhook(?:_url)?|authorization)$|passw(?:or)?d$|passphrase$",
    re.IGNORECASE,
)
"""What nothing but a secret is called."""
_OFTEN = re.compile(
    r"(?:^|_)(?:(?:pg|db|my|ssh)?pass|passcode|auth|bearer|session(?:_id)?|cookies?|dsn|pat|sas|"
    r"creds?)$|_pwd$",
    re.IGNORECASE,
)
"""What secrets are called, and settings too, whose values are plain words."""
_KEYS = re.compile(r"(?:^|_)(?:key|keys|salt|seed_phrase)$", re.IGNORECASE)
"""What many things are called; a secret is one of random letters."""
_SETTING = re.compile(
    r"\d{1,5}|true|false|yes|no|on|off|none|null|auto|default|required|optional|(?:en|dis)abled?|"
    r"basic|digest|token|oauth2?|kerberos|anonymous|standard",
    re.IGNORECASE,
)
_SWITCH = re.compile(
    r"(?:^|_)(?:allow|disable|enable|has|no|require|return|skip|use|with)_|token$", re.IGNORECASE
)
"""What settings about secrets are called: HF_HUB_DISABLE_IMPLICIT_TOKEN=1."""
_PIECE_OF_TEXT = re.compile(
    r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|begin|eot|eod|fim|special|image|audio|video|"
    r"think(?:ing)?|tool|first|last|next|draft|per|response|prompt|boi|eoi)_token$",
    re.IGNORECASE,
)
_REFERENCES = frozenset({"token_secret", "api_key_secret"})  # the name of a secret, not the secret
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RANDOM = re.compile(r"[A-Za-z0-9+/_.=-]{16,}")
_RANDOM_BITS = 3.0
"""Bits of entropy per letter from which a text counts as random; a long key in hex has nearly 4."""
_HINT = (
    "Remove it: pass secrets through the environment when the bundle starts, "
    "or name a Kubernetes Secret (token_secret, api_key_secret)."
)


def refuse_secrets(parts: Mapping[str, Any], *, by_name: tuple[str, ...] = ()) -> None:
    """Check the texts of ``parts``; in ``by_name`` parts, names count as well.

    Raises:
        InputError: for the first text that looks like a secret, or is called one.
    """
    for part, value in parts.items():
        for field, text in _texts(value, part):
            kind = _form(text)
            if kind is None and part in by_name and _is_called_secret(field, text):
                kind = "a secret"
            if kind is not None:
                raise InputError(
                    f"looks like {kind}; recipes and bundles must not contain secrets.",
                    field=field,
                    hint=_HINT,
                )


def is_secret(field: str, value: Any) -> bool:
    """Whether a value looks like a secret or is called one by its dotted field."""
    return any(_form(text) or _is_called_secret(name, text) for name, text in _texts(value, field))


def _form(text: str) -> str | None:
    for kind, pattern in _PATTERNS.items():
        if pattern.search(text):
            return kind
    if any(_is_name_and_password(match.group(1)) for match in _BASIC.finditer(text)):
        return "an authorization header"
    return None


def _is_name_and_password(text: str) -> bool:
    """Whether a text is the ``user:password`` of an authorization header."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode().isprintable()


def _is_called_secret(field: str, text: str) -> bool:
    name = _CAMEL.sub("_", field.rpartition(".")[2].replace("-", "_"))
    if not text or name in _REFERENCES or _PIECE_OF_TEXT.search(name):
        return False
    if _NAMES.search(name):
        return not (_SWITCH.search(name) and _SETTING.fullmatch(text))
    if _OFTEN.search(name):
        return not _SETTING.fullmatch(text)
    return _KEYS.search(name) is not None and _is_random(text)


def _is_random(text: str) -> bool:
    """Whether letters and digits look drawn at random: no word, no path, no number."""
    if not _RANDOM.fullmatch(text) or text.startswith(("/", ".")) or text.count("/") > 2:
        return False
    if not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    return bits >= _RANDOM_BITS


def refuse_planted(files: Mapping[str, bytes]) -> None:
    """Check that no file holds the value of an environment variable that is named like a secret.

    Raises:
        InputError: names the file and the variable.
    """
    for name, value in os.environ.items():
        if len(value) < SHORTEST or not _is_called_secret(name, value):
            continue
        # A word in such a variable (DESKTOP_SESSION) may stand in files by chance.
        if value.isalpha() and not _NAMES.search(name):
            continue
        holding = next((path for path, data in files.items() if os.fsencode(value) in data), None)
        if holding is not None:
            raise InputError(
                f"contains the value of the environment variable {name}; "
                "bundles must not contain secrets.",
                field=holding,
                hint=_HINT,
            )


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Every text inside plain values, keys included, with its dotted field."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{field} (a key)", str(key)
            yield from _texts(item, f"{field}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, field)
