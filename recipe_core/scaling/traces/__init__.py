"""Requests over time: traces as they were recorded, and loads as they are expected.

Reads traces of several formats, describes them (rates, bursts, lengths, reuse of prefixes), makes
arrivals of a described load, and forecasts. Plain arrays, no engine and no hardware.
"""
