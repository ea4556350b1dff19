"""The catalog: topics, their schemas and their settings."""

if __name__ != "txnstore.catalog":
    raise ImportError("import txnstore.catalog, not catalog: two copies of its classes would not know each other")
