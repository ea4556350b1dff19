"""The door to PySpark: the ``txnstore`` data source. Imports the engine only when it is used."""
