"""Exports the metrics of a store: as Prometheus text, and through OpenTelemetry."""
