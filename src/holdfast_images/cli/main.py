"""The entry point: the engine's command with the image commands in front. Imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli import main as engine
from holdfast.cli.command import CommandEntry, CommandExtension, ExitCode
from holdfast_images import errors

ABOUT = """Crash-safe jobs, and container images from a bucket to a snapshot: each once, whatever crashes.

Data goes to stdout, everything else to stderr. Exit codes are documented in docs/reference/exit-codes.md.
"""

IMAGES = "Images"

ENTRIES = {
    "process-image": CommandEntry(
        "holdfast_images.cli.process",
        "process_image",
        "Fetch, check, unpack and snapshot an image, or several at once.",
        IMAGES,
    ),
    "images": CommandEntry("holdfast_images.cli.image", "images", "List images.", IMAGES),
    "snapshots": CommandEntry("holdfast_images.cli.image", "snapshots", "List snapshots.", IMAGES),
    "image": CommandEntry("holdfast_images.cli.image", "image", "Look at one image, verify it, remove it.", IMAGES),
    "snapshot": CommandEntry(
        "holdfast_images.cli.image", "snapshot", "Make a snapshot, take one out of use, or bring it back.", IMAGES
    ),
    "locks": CommandEntry(
        "holdfast_images.cli.administration",
        "locks",
        "See who works on which image; release a lock that was left.",
        IMAGES,
    ),
    "inspect": CommandEntry(
        "holdfast_images.cli.process", "inspect", "Say everything that is wrong with an archive.", IMAGES
    ),
    "gc": CommandEntry(
        "holdfast_images.cli.administration", "gc", "Remove what crashes have left and nobody needs.", IMAGES
    ),
    "host": CommandEntry(
        "holdfast_images.cli.administration",
        "host",
        "See whose files and devices these are, or take them over.",
        IMAGES,
    ),
    "pool": CommandEntry(
        "holdfast_images.cli.administration", "pool", "Make, watch, extend and check the thin pool.", IMAGES
    ),
    "verify-system": CommandEntry(
        "holdfast_images.cli.administration", "verify_system", "Check jobs, catalog, files and devices.", IMAGES
    ),
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
    "data backend host bucket endpoint region path_style anonymous allow_http api_sources connections policy "
    "keep_setuid limits device_size read_origins download_timeout extract_timeout"
)

EXTENSION = CommandExtension(
    about=ABOUT,
    entries=ENTRIES,
    default_app="holdfast_images.cli.session:image_app",
    web="holdfast_images.cli.session:web_extension",
    keys=frozenset(KEYS.split()),
    codes=CODES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return engine.main(arguments, extension=EXTENSION)
