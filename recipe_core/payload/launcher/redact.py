"""Takes secrets, people and prompts out of texts that leave the machine."""

from __future__ import annotations

import base64
import binascii
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

# Every repetition has an upper bound: texts come from anybody, and may be megabytes. What a form
# matches is what a report leaves out, but for the part of it that is ``kept``.
_REST = r"[A-Za-z0-9_-]{0,400}"
_FORMS = {
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{16,400}",
    "an API key": (
        r"\b(?:sk|nvapi|xai|gsk|pplx|csk|[rs]k_(?:live|test|prod)|r8|fw|tgp_v1|rpa|wandb_v1"
        r"|lsv2_(?:pt|sk)|lin_api|pscale_(?:tkn|oauth|pw)|duffel_(?:live|test)"
        rf"|shippo_(?:live|test)|sq0(?:atp|csp)|sm_[aps]at)[-_][A-Za-z0-9_-]{{16}}{_REST}"
    ),
    "a Google API key": r"\bAIza[A-Za-z0-9_-]{35}",
    "a Google token": rf"\bya29\.[A-Za-z0-9_-]{{20}}{_REST}|\bGOCSPX-[A-Za-z0-9_-]{{20}}{_REST}",
    "a service account": r'"type"\s{0,9}:\s{0,9}"service_account"',
    "a GitHub token": r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,400}",
    "a GitLab token": (
        r"\bgl(?:pat|ptt|dt|rt|cbt|ft|ffct|soat|agent|oas|imt)-[A-Za-z0-9_.-]{16,400}"
        r"|\bGR1348941[A-Za-z0-9_-]{20}"
    ),
    "an npm token": r"\bnpm_[A-Za-z0-9]{30,400}",
    "a PyPI token": rf"\bpypi-[A-Za-z0-9_-]{{32}}{_REST}",
    "a Docker token": rf"\bdckr_[po]at_[A-Za-z0-9_-]{{20}}{_REST}",
    "an AWS access key": r"\b(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[0-9A-Z]{16}\b",
    "an AWS API key": (r"\bABSK[A-Za-z0-9+/]{100,400}|\bbedrock-api-key-[A-Za-z0-9+/=]{16,2000}"),
    "an Azure key": (
        r"(?P<kept>\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=)(?![$<{])[^\s;\"']{8,400}"
        r"|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="
        r"|(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"
    ),
    "a key of a cloud": (
        r"\bLTAI[A-Za-z0-9]{20}\b|\bdapi[0-9a-f]{32}\b|\bdo[opr]_v1_[0-9a-f]{40,100}"
        r"|\bHRKU-[A-Za-z0-9_-]{40,100}|\bf(?:o1|m1[ar]|m2)_[A-Za-z0-9+/_-]{40,2000}"
        r"|\bsha256~[A-Za-z0-9_-]{43}"
    ),
    "a Vault token": r"\bhv[sbr]\.[A-Za-z0-9_-]{24,400}|\b[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,80}",
    "a Grafana token": r"\bgl(?:sa|c)_[A-Za-z0-9_+/=]{32,400}|\beyJrIjoi[A-Za-z0-9]{60,400}",
    "a Tailscale key": r"\btskey-[a-z]{1,20}-[A-Za-z0-9-]{12,200}",
    "a SendGrid key": r"\bSG\.[A-Za-z0-9_-]{16,80}\.[A-Za-z0-9_-]{16,80}",
    "a Twilio key": r"\bSK[0-9a-f]{32}\b",
    "a Telegram token": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "a Slack token": r"\bx(?:ox[abeoprs]|app)-[A-Za-z0-9.-]{10,400}",
    "a token of a service": (
        r"\bA3-[A-Z0-9]{6}-[A-Z0-9-]{28,34}|\bops_eyJ[A-Za-z0-9+/]{100,2000}"
        r"|\bAKCp[A-Za-z0-9]{69}\b|\bcmVmd[A-Za-z0-9]{59}\b|\bATATT3[A-Za-z0-9_=-]{100,400}"
        r"|\bdp\.(?:pt|st|ct|sa|scim)\.[A-Za-z0-9_.-]{40,100}|\bdt0[a-z]01\.[A-Za-z0-9.]{80,100}"
        r"|\bntn_[0-9]{11}[A-Za-z0-9]{32,40}|\bPMAK-[a-f0-9]{24}-[a-f0-9]{34}|\bNRAK-[A-Z0-9]{27}"
        r"|\bpnu_[A-Za-z0-9]{36}\b|\bpul-[a-f0-9]{40}\b|\brdme_[a-z0-9]{70}"
        r"|\brubygems_[a-f0-9]{48}|\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|\bsgp_[a-zA-Z0-9_]{40,60}"
        r"|\bsntry[su]_[A-Za-z0-9+/=_-]{40,400}|\bxkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}"
        r"|\bAPI-[A-Z0-9]{26}\b|\bico-[A-Za-z0-9]{32}\b|\bp8e-[a-z0-9]{32}\b|\bfigd_[\w-]{40}"
    ),
    "a webhook": (
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/\w[\w/]{0,200}"
        r"|\bdiscord(?:app)?\.com/api/webhooks/[0-9]{1,30}/\w[\w-]{0,200}"
        r"|\.webhook\.office\.com/\w[\w/@-]{0,400}"
    ),
    "a signed web token": r"\beyJ[\w-]{8,400}\.eyJ[\w-]{8,8000}(?:\.[\w-]{0,4000})?",
    "a private key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|\bAGE-SECRET-KEY-1[0-9A-Z]{20,100}|\bPuTTY-User-Key-File-[^\n]{0,100}"
        r"|\bb3BlbnNzaC1rZXktdj[A-Za-z0-9+/=]{0,8000}"
        # "-----BEGIN … PRIVATE", as files of Kubernetes hold it
        r"|\bLS0tLS1CRUdJTi(?:BSU0EgUFJJVkFUR|BQUklWQVRF|BFQyBQUklWQVRF|BPUEVOU1NIIFBSSVZBVE"
        r"|BFTkNSWVBURUQgUFJJVkFUR)[A-Za-z0-9+/=]{0,8000}"
    ),
    "a password of netrc": (
        r"(?P<kept>\blogin\s{1,9}\S{1,200}\s{1,9}passw(?:or)?d\s{1,9})(?![$<{])\S{1,200}"
    ),
    "a user's password": (
        r"(?P<kept>\b(?:curl|wget)\s[^\n]{0,200}?(?:-u|--user)[\s=]{1,3}[\"']?[^\s:\"'$<{]{1,100}:)"
        r"(?![$<{])[^\s\"']{3,200}"
    ),
    "an authorization header": (
        r"(?i:\A\s{0,9}bearer[\s.:]\s{0,9}\S{3,4000}\s{0,9}\Z"
        r"|\bbearer\s{1,9}(?=[\w.~+/-]{0,60}[0-9])[\w.~+/-]{12,4000}"
        r"|\b(?:proxy-)?authorization\s{0,9}[:=]\s{0,9}(?:bearer|basic|token|digest)\s{1,9}"
        r"\S{1,4000})"
    ),
    "an address with a password": (
        r"(?P<kept>\b[a-z][a-z0-9+.-]{0,30}://)[^\s/:@]{0,200}:(?![$<{])[^\s/@]{1,200}@"
    ),
    "an address with a key": (
        r"(?i:(?P<kept>[?&](?:[a-z]{1,20}[-_]){0,3}(?:token|api-?key|key|sig|signature"
        r"|pass(?:word|wd)?|secret|credential)=)(?![$<{])[^&\s]{6,2000})"
    ),
}
_PATTERNS = {kind: re.compile(form) for kind, form in _FORMS.items()}
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

# What nothing but a secret is called.
_SECRET_NAMES = re.compile(
    r"(?:^|_)(?:api_?keys?|secrets?|token|jwt|(?:access|private|secret|account|signing|encryption|"
    r"master|license|deploy|ssh|auth|session|storage|shared|host)_?key(?:_id)?|credentials?|"
    r"conn(?:ection)?_?str(?:ing)?|webhook(?:_url)?|authorization)$|passw(?:or)?d$|passphrase$",
    re.IGNORECASE,
)
# What secrets are called, and settings too, whose values are plain words.
_OFTEN = re.compile(
    r"(?:^|_)(?:(?:pg|db|my|ssh|key|store|trust|user|proxy|ldap|smtp|mail|root|admin)?pass|passcode"
    r"|pw|pswd|psk|otp|auth|bearer|session(?:_id)?|cookies?|dsn|pat|sas|creds?)$|\wpwd$",
    re.IGNORECASE,
)
# What many things are called; a secret is one of random letters.
_KEYS = re.compile(r"(?:^|_)(?:key|keys|salt|seed_phrase)$", re.IGNORECASE)
_SETTING = re.compile(
    r"\d{1,5}|true|false|yes|no|on|off|none|null|auto|default|required|optional|(?:en|dis)abled?|"
    r"basic|digest|token|oauth2?|kerberos|anonymous|standard",
    re.IGNORECASE,
)
# What settings about secrets are called: HF_HUB_DISABLE_IMPLICIT_TOKEN=1.
_SWITCH = re.compile(
    r"(?:^|_)(?:allow|disable|enable|has|no|require|return|skip|use|with)_|token$", re.IGNORECASE
)
_PIECE_OF_TEXT = re.compile(
    r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|begin|eot|eod|fim|special|image|audio|video|"
    r"think(?:ing)?|tool|first|last|next|draft|per|response|prompt|boi|eoi)_token$",
    re.IGNORECASE,
)
_REFERENCES = frozenset({"token_secret", "api_key_secret"})  # the name of a secret, not the secret
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RANDOM = re.compile(r"[A-Za-z0-9+/_.=-]{16,}")
# Bits of entropy per letter from which a text counts as random; a long key in hex has nearly 4.
_RANDOM_BITS = 3.0


def secret_kind(text: str) -> str | None:
    """What kind of secret is in a text; None where there is none of a known form."""
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
        if not _is_like(_last_name(match["name"])):
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
    """Whether a text is a secret by the name of its field, the last of a dotted one."""
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


def _is_like(name: str) -> bool:
    return any(pattern.search(name) for pattern in (_SECRET_NAMES, _OFTEN, _KEYS))


def always_secret(name: str) -> bool:
    """Whether nothing but a secret is called so."""
    return _SECRET_NAMES.search(name) is not None


def _is_name_and_password(text: str) -> bool:
    """Whether a text is the ``user:password`` of an authorization header."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode().isprintable()


def _is_random(text: str) -> bool:
    """Whether letters and digits look drawn at random: no word, no path, no number."""
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
