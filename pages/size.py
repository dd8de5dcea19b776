import _common as common
import _size_answer as sizing
import _size_form as form
import _size_later as later
import _size_result as result
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import model_name, workload_name
from recipe_core.request.open_hardware import size_request

if page := st.session_state.pop("size-goto", None):
    st.switch_page(page, query_params=common.screen_link_query())

request = common.request()
st.title("Which hardware, and how much?", anchor=False)
caption = st.empty()
form.draw_size_form()
status = st.container()
place = st.empty()
try:
    sized_request = size_request(
        request, common.current_market(), form.goal(), **later.stated_parts()
    )
    caption.caption(
        common.escape(f"{model_name(request)} · {workload_name(sized_request.workload)}")
    )
    with status:
        for answer in sizing.sizing_answers(sized_request):
            if "sized" in answer and answer["sized"] < answer["of"]:
                with place.container():
                    result.draw_partial_sizing(answer)
    with place.container():
        result.draw_whole_sizing(answer, sized_request)
        later.draw_later_parts(answer)
except RecipeError as error:
    place.error(common.escape(error), icon=":material/error:")
