"""The command `holdfast`, with a state of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def process_image(*words: str) -> list[str]:
    """The command that processes an image."""
    return [*holdfast("process-image"), *words, "--json"]


def holdfast(*words: str) -> list[str]:
    """Any of its commands."""
    return [sys.executable, "-m", "holdfast_images.cli", *words]


def state_in(directory: Path, more: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """The environment in which its state is there, and no settings of this machine count."""
    return {"HOLDFAST_STATE": str(directory / "state"), "HOME": str(directory), **dict(more)}
