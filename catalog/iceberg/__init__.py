"""The Iceberg table format: schemas, manifests, metadata and cuts, as far as topics need them. No I/O."""
