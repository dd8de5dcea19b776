import _common as common
import streamlit as st

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
