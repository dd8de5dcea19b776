"""The objects that a policy becomes, as the bundle will hold them, on the lens on time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import _common as common
import _recipe_cache as recipe_cache
import _session as session
import _tabs as tabs
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.serve import folders_allowed
from recipe_core.request.edit import change
from recipe_core.views import over_time as view

Json = Mapping[str, Any]


def draw_policy_files(policy: Json) -> None:
    """The files of the bundle that hold the policy's numbers; made when they are looked at."""
    title = "What is written into the bundle"
    with st.expander(
        title, icon=":material/description:", key="over-time-objects", on_change="rerun"
    ) as part:
        if not part.open:
            return
        try:
            files = policy_files(policy["scaling"])
        except RecipeError as error:
            st.error(common.escape(error), icon=":material/block:")
            return
        if not files:
            st.info(f"No object of the bundle is written for {view.policy_title(policy['name'])}.")
            return
        path = st.selectbox("File", list(files), key="over-time-object")
        tabs.draw_file_text(files[path or next(iter(files))])


def policy_files(scaling: Json) -> dict[str, str]:
    """Files of the bundle that differ by the policy, by path.

    Raises:
        RecipeError: where no bundle can be made.
    """
    request = change(session.request(), {"options.scaling": scaling})
    plain = change(request, {"options.scaling": None})
    with_policy, without = (
        recipe_cache.cached_bundle(
            json.dumps(scaled_request.to_json()), session.inputs_digest(), folders_allowed(), ""
        )
        for scaled_request in (request, plain)
    )
    return view.scaled_files(with_policy.files, without.files)
