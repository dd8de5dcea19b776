"""Engines and frameworks as data: versions, options, abilities, memory rules, overheads.

``serving/``, ``training/`` and ``options/`` hold the YAML files, the modules type them. How an
engine is started is ``launch``.
"""
