"""Recipes and bundles hold no secrets.

A secret is recognised by its form, by its name, or because it is in this process's environment.
"""

from __future__ import annotations
