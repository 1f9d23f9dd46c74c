"""The embedded store: one SQLite file, several processes of one machine."""
