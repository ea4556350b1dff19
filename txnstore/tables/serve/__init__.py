"""``txnstore table serve``: a read-only Iceberg REST catalog of the published tables. See docs/tables.md."""
