"""What a size means in money and time: failures and spares, buying or renting, growth.

Plain numbers in, frozen results out; it knows nothing of plans, and shipped figures are read from
``failures.yaml``. May import base and hardware.
"""
