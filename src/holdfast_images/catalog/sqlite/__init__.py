"""The catalog in the SQLite file of the engine."""
