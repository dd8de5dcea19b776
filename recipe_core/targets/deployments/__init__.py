"""Deployment files that people have (Compose, Kubernetes, Slurm …): the engines that they start.

Files are read with suspicion and nothing of them is executed; each engine becomes a command and the
devices that its file states.
"""
