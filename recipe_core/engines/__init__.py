"""What engines and frameworks are and can do, as data: versions, options, memory rules, overheads.

``serving/``, ``training/`` and ``options/`` hold the YAML files, the modules type them. How an
engine is started is ``launch``.
"""
