"""Faults that are done to running bundles, and what must hold afterwards.

`python -m tests.nightly.chaos` does hundreds of them at random; a test does one of each.
"""
