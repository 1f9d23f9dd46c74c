"""Runs jobs: claims them, keeps their leases, performs their steps, records what came of it."""
