"""What the files for deployments name."""
