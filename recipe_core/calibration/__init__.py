"""Estimates held against what was measured, and against the real model traced without data.

Errors by figure and source, and what measured runs of one's own teach. Only ``trace`` loads torch,
when it is called.
May import base, model, hardware, engines, request, measured, compression, space, physics and
search.
"""
