"""Which hardware, how many of it and at what cost: every device sized, and what follows from it.

What a size means in money and time (failures and spares, buying or renting, growth) is worked out
in plain numbers.
"""
