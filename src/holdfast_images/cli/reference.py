"""The reference of the image commands, as Markdown, from the commands themselves.

`python -m holdfast_images.cli.reference` prints it; a test compares it with docs/reference/image-commands.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast.cli.main import extended
from holdfast.cli.reference import commands, reference
from holdfast_images.cli.main import EXTENSION


def image_commands() -> Iterator[tuple[str, click.Command]]:
    """Every image command and group with its full name, in the order of the help."""
    for name, command in commands(extended(EXTENSION)):
        words = name.split()
        if len(words) > 1 and words[1] in EXTENSION.entries:
            yield name, command


if __name__ == "__main__":
    print(reference(image_commands()))
