"""Experiments that start a bundle's own launcher, measure what it serves, and stop it again.

``verify`` compares outputs, ``tune`` searches settings on the real machine; both leave nothing
running, also where they are killed.
"""
