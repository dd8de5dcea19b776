"""What every room uses and no domain is in: errors, documents, types, units, provenance, words.

It reads and writes documents and finds the files of the package. It asks no network, and knows no
model, device or engine. May import no other room.
"""
