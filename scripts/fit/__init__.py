"""The parts of ``fit_profiles.py``: measured points by operator family, and the fit to them."""
