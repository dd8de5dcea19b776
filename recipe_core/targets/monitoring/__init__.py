"""What watches a deployment: Prometheus rules, what to scrape, a Grafana dashboard.

Thresholds are the recipe's limits, else the far end of the estimate's band. Names of engines'
metrics are data of ``engines``, those of exporters stand in ``exporters.yaml``.
"""
