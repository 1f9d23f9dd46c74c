"""Copying the database while others work."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.store.new_file import new_file


def backup(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy, durable under its final name or not there at all; nothing is overwritten."""
    with new_file(target) as partial:
        copy_whole(connection, partial)


def copy_whole(connection: sqlite3.Connection, target: Path) -> None:
    """Copy a database into an empty file that nobody else knows."""
    with closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)
        # A single file, complete in itself: no log beside it that could be forgotten.
        copy.execute("PRAGMA journal_mode = DELETE")
