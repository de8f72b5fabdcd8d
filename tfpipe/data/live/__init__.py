"""Live figures of a process for Prometheus."""
