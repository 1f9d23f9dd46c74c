"""The shared store: one PostgreSQL database, workers on many hosts."""
