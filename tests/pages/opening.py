"""Pages opened as Streamlit runs them, but without a browser, and what is read off them."""

from __future__ import annotations

import json
from typing import Any

from streamlit.testing.v1 import AppTest

from recipe_core.base.resources import root
from tests.e2e.patience import PATIENCE

PAGES = {
    "model.py": "What do you want to run?",
    "objective.py": "What matters?",
    "hardware.py": "Where will it run?",
    "compare.py": "Which split?",
    "recipe.py": "Use this split",
}
TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def opened(page: str = "model.py", *, hardware_chosen: bool = True, **query: str) -> AppTest:
    """A page of a link, by default of a reader who has chosen the hardware that it means."""
    app = AppTest.from_file(str(root("pages") / "_entry.py"), default_timeout=PATIENCE)
    app.query_params.update(query)
    if hardware_chosen:
        app.session_state["hardware-chosen"] = True
    app.run()
    if page != "model.py":
        app.switch_page(page).run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def words(app: AppTest) -> str:
    """Everything the page says in words."""
    kinds = (app.title, app.markdown, app.caption, app.success, app.warning, app.error, app.info)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def codes(app: AppTest) -> list[str]:
    """Texts to copy on the page, without the link that every page has."""
    return [code.value for code in app.code if "?v=1" not in code.value]


def open_view(app: AppTest, name: str) -> AppTest:
    """Open a tab of the comparison; the others are not computed."""
    app.session_state["views"] = name
    app.run()
    assert not app.exception, [error.value for error in app.exception]
    return app


def figure(app: AppTest, key: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(app.get_by_key(key).proto.spec)
    return spec


def query_of(app: AppTest) -> dict[str, str]:
    return {
        name: value[0] if isinstance(value, list) else value
        for name, value in app.query_params.items()
    }
