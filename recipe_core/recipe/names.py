"""Names of recipes: for files, requests and clusters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from recipe_core.request.describe import model_short_name

# Targets add words to a name, and a DNS label has at most 63 characters.
DNS_LABEL_CHARACTERS = 40


def recipe_name(model: str, device: str, candidate: Mapping[str, Any]) -> str:
    """Model, device, degrees above one, engine."""
    degrees = [
        f"{name}{candidate[name]}"
        for name in ("tp", "pp", "cp", "dp", "ep")
        if candidate.get(name, 1) > 1
    ]
    split = "-".join(degrees) or "single"
    return f"{model_short_name(model).lower()}-{device}-{split}-{candidate['engine']}"


def dns_label(name: str) -> str:
    """A name as a DNS label; of one that is cut short a hash keeps it apart from others."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "recipe"
    if len(label) <= DNS_LABEL_CHARACTERS:
        return label
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{label[: DNS_LABEL_CHARACTERS - 7].rstrip('-')}-{mark}"
