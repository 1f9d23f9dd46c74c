"""Copying the database while others work."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.errors import SettingsError


def backup(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy, durable under its final name or not there at all."""
    if target.exists():
        raise SettingsError(f"{target} exists already", hint="give a new name; a backup never overwrites")
    partial = target.with_name(target.name + ".partial")
    if not target.parent.is_dir():
        raise SettingsError(f"there is no directory {target.parent}", hint="make it first")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
            # A single file, complete in itself: no log beside it that could be forgotten.
            copy.execute("PRAGMA journal_mode = DELETE")
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
