"""From a ``config.json`` to a model: each module reads one part of it by its fields.

Plain values in, parts of a model out, errors that name the field. Nothing here asks the network; a
new architecture is read here or stands in ``families.yaml``.
"""
