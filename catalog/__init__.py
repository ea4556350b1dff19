"""The catalog: topics, their schemas and their settings."""

if __name__ != "txnstore.catalog":
    raise ImportError("this folder is the package 'txnstore.catalog': import it by that name")
