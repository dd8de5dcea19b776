"""The model to deploy as layers and tensors, its catalog, checkpoints and number formats.

It reads the catalog and folders of checkpoints; only ``hub`` asks the network, when it is told to.
"""
