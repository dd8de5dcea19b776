"""Launches of serving engines: one small module an engine, found by its name.

A module answers processes and files for a deployment. ``render_template`` and ``ray_node`` travel
in bundles: they use the standard library only.
"""
