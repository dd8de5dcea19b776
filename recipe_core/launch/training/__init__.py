"""Launches of training frameworks: one small module a framework, chosen by ``start``.

A module answers processes and files for a job, exactly as it was estimated, or refuses by name what
the framework cannot be told. ``job`` is what they share.
"""
