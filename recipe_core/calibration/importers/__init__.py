"""Measurements of other programs: a table of formats, recognised by a file's content.

Benchmarks of clients, results of suites, logs of training runs, start-up logs of engines and their
metrics, each as an `Imported`: figures in SI units, the load, what the file states of the split.
"""
