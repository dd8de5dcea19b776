"""What ``fit_profiles.py`` is made of: measured points by operator family, and the search for the
numbers that fit them.
"""
