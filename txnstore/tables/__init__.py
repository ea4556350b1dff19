"""Tables: topics as Apache Iceberg tables, which engines read without txnstore. See docs/tables.md."""
