"""The compressor in bundles: it makes a checkpoint smaller and holds it against its base.

Runs on the machine of the bundle, with torch or the tool that a recipe names. Copied into bundles:
imports nothing of the package but itself.
"""
