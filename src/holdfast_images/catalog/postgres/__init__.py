"""The catalog in the PostgreSQL schema of the engine: the same tables, with the host in their keys."""
