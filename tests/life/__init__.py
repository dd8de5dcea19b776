"""Rendered training bundles live as their targets would let them, with the real tools."""
