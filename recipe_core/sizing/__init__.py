"""Sizing: which hardware, how many of it and at what cost, for every device.

What a size means in money and time (failures and spares, buying or renting, growth) is worked out
in plain numbers.
"""
