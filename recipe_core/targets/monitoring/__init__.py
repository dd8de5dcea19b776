"""What watches a deployment: Prometheus rules whose thresholds are the recipe's, what to scrape, and a Grafana dashboard."""
