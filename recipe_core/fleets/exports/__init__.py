"""A placed fleet as files: what joins its bundles, and the folder of all of them.

Each module writes for one kind of reader, from a ``FleetAnswer`` and its ``Part``s.
"""
