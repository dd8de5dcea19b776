"""Scripts of the pages: what no part of the library that draws them can do."""

from __future__ import annotations

FOCUS_TITLE = """{
  const title = document.querySelector("[data-testid=stMain] h1")
  if (title && !document.activeElement.closest(".st-key-body")) {
    title.tabIndex = -1
    title.style.outline = "none"
    title.focus({preventScroll: true})
    const main = title.closest("[data-testid=stMain]")
    if (main.scrollTop < innerHeight / 4) main.scrollTo(0, 0)
  }
}"""
"""Gives the title of a page the focus: the Tab key goes on from there, and readers say it aloud.

What was pressed to turn the page is often gone with the page, and the focus with it. Whoever went
on into the new page meanwhile stays there. A page that took the place of a longer one may begin a
little below its top; further down is where its reader scrolled.
"""
PAGE_SCRIPTS = (FOCUS_TITLE,)
"""All of them, for the policy that names what may run."""
