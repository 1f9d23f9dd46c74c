"""Looks for broken invariants, stalls and corruption. Without it every job still runs, and recovers, correctly."""
