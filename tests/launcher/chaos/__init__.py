"""Faults that are done to running bundles, and what must hold afterwards.

`scripts/chaos.py` does hundreds of them at random; a test does one of each.
"""
