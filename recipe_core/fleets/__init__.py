"""The fleet: many models on owned and rented machines, down to a slice of a device.

Which model runs where, what is rented or reserved, what each team pays, how sure all of it is
together, and how to get there from today.
"""
