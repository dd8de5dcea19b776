"""Answers as people read them: charts, tables, reports, text for terminals, JSON, snippets.

It lays out what other rooms answer, decides nothing and prints nothing. May import base, model,
hardware, engines, request, traffic, compression, space, physics, search, sizing, fleet, explain,
formats, calibration, recipe, targets, bundle and trials.
"""
