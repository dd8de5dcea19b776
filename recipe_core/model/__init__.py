"""What is deployed: models read from their configuration."""
