"""Faults that are done to running bundles, and what must hold afterwards."""
