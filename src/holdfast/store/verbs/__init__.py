"""What the verbs of a store do, the same on every database: only the statements differ, by dialect."""
