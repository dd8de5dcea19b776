"""Monitoring of a deployment: Prometheus rules and scrape configuration, a Grafana dashboard.

Thresholds are the recipe's limits, else the far end of the estimate's band. Engines' metric names
are data of ``engines``, device exporters' are in ``exporters.yaml``.
"""
