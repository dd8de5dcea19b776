"""The launcher in bundles: preflight, start, supervise, measure.

Standard library only, Python 3.10 or newer. The folder is copied into the bundle as ``launcher/``
next to a ``launch.py`` that loads its sources only, so every import inside it is relative and
nothing here may import ``recipe_core``.
"""
