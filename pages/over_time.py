import _common as common
import _over_time_answer as simulating
import _over_time_goal as goal
import _over_time_load as loads
import _over_time_result as result
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.present import over_time_view as view
from recipe_core.request.describe import summary

st.title("How many replicas, and when?", anchor=False)
st.caption(common.escape(summary(common.request())))
if common.training():
    st.info(
        "This page is about serving: requests that come over time. A training run has no load.",
        icon=":material/info:",
    )
    st.page_link(
        "objective.py",
        label="Serve instead",
        icon=":material/target:",
        query_params=common.link(),
    )
else:
    ...
