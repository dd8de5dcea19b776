"""Tools that make checkpoints: one module each, found by its name.

Each renders a script of the tool's own API at its pinned version, which reads ``job.json`` and
writes one folder; ``start`` puts the job, the script and what checks the result together.
"""
