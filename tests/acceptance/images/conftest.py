"""The command for each test, an image that is processed, and a gate to stop one in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.images.driving import Gate, ImageHoldfast


@pytest.fixture
def holdfast(tmp_path: Path) -> ImageHoldfast:
    """The command, without a state."""
    return ImageHoldfast(tmp_path)


@pytest.fixture
def processed(holdfast: ImageHoldfast) -> ImageHoldfast:
    """The command, with an image `demo` that is downloaded, unpacked and active."""
    holdfast.process(holdfast.source(), "--image-id", "demo")
    return holdfast


@pytest.fixture
def gate() -> Iterator[Gate]:
    """An image that is given away only when the gate is opened."""
    gate = Gate()
    with gate.server.running():
        yield gate
        gate.open()
