"""Which database is meant: the engine's, by the engine's own rules."""

from holdfast.tables import database_path, is_postgres

__all__ = ["database_path", "is_postgres"]
