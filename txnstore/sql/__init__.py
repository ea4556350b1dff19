"""The door to DuckDB: a view a topic, and the inspection views. Imports the engine only when it is used."""
