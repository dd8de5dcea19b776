"""Common ground of all rooms: errors, documents, types, units, provenance, words.

It reads and writes documents, finds the files of the package and fetches small answers from the
web. It knows no model, device or engine.
"""
