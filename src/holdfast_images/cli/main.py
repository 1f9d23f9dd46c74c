"""The entry point: the engine's command with the image commands in front. Imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli import main as engine
from holdfast.cli.command import Entry
from holdfast.cli.exits import ExitCode
from holdfast.cli.extension import Extension
from holdfast_images import errors

ABOUT = """Container images from a bucket to a snapshot, each at most once, whatever crashes.

Data goes to stdout, everything else to stderr. Exit codes are documented in docs/reference/exit-codes.md.
"""

ENTRIES = {
    "process-image": Entry(
        "holdfast_images.cli.process", "process_image", "Fetch, check, unpack and snapshot an image."
    ),
    "images": Entry("holdfast_images.cli.looking", "images", "List images."),
    "snapshots": Entry("holdfast_images.cli.looking", "snapshots", "List snapshots."),
    "image": Entry("holdfast_images.cli.image", "image", "Look at one image, verify it, remove it."),
    "snapshot": Entry("holdfast_images.cli.snapshot", "snapshot", "Make a snapshot, or take one out of use."),
    "inspect": Entry("holdfast_images.cli.inspecting", "inspect", "Say everything that is wrong with an archive."),
    "gc": Entry("holdfast_images.cli.upkeep", "gc", "Remove what crashes have left and nobody needs."),
    "pool": Entry("holdfast_images.cli.pool", "pool", "Make, watch, extend and check the thin pool."),
    "verify-system": Entry("holdfast_images.cli.upkeep", "verify_system", "Check jobs, catalog, files and devices."),
}

CODES = {
    errors.InvalidName: ExitCode.USAGE,
    errors.ImageRefused: ExitCode.REFUSED,
    errors.ObjectNotFound: ExitCode.NOT_FOUND,
    errors.UnknownImage: ExitCode.NOT_FOUND,
    errors.CatalogUnavailable: ExitCode.STORE,
    errors.CatalogUnusable: ExitCode.STORE,
    errors.Interrupted: ExitCode.INTERRUPTED,
}

# Named here and not taken from the settings, which would have to be imported; a test compares the two.
KEYS = (
    "data backend host bucket endpoint region path_style anonymous allow_http connections policy keep_setuid limits "
    "device_size download_timeout extract_timeout"
)

EXTENSION = Extension(
    about=ABOUT,
    entries=ENTRIES,
    default_app="holdfast_images.cli.opening:image_app",
    keys=frozenset(KEYS.split()),
    codes=CODES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return engine.main(arguments, extension=EXTENSION)
