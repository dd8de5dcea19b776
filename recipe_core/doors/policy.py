"""What browsers may do with an answer of this server: content security policies."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
"""Answers of programs' doors are documents, not pages."""

_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def page_policy() -> str:
    """The policy of pages: what Streamlit's frontend needs, and nothing of another site.

    It sets styles as it runs and draws icons and downloads from memory; of scripts only its files
    and the ones inside its own document run, which are named by their digests.
    """
    document = files("streamlit").joinpath("static", "index.html").read_text(encoding="utf-8")
    scripts = [_digest(script) for script in _INLINE_SCRIPT.findall(document)]
    sources = {
        "default-src": ["'self'"],
        "script-src": ["'self'", "'wasm-unsafe-eval'", *scripts],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:", "blob:"],
        "font-src": ["'self'", "data:"],
        "worker-src": ["'self'", "blob:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
    return "; ".join(f"{name} {' '.join(allowed)}" for name, allowed in sources.items())


def _digest(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
