"""Every reason is a stable code with its line of explanation, and none is registered in vain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast_images
from holdfast_images.archive.reasons import Reason

SOURCES = {
    path: path.read_text(encoding="utf-8")
    for path in Path(holdfast_images.__file__).parent.rglob("*.py")
    if path.name != "reasons.py"
}


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_is_explained_in_one_sentence(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Z_]+", reason)
    assert reason.name == reason.value
    assert re.fullmatch(r"[A-Z].*\.", reason.explanation)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_is_given_somewhere(reason: Reason) -> None:
    assert any(f"Reason.{reason.name}" in text for text in SOURCES.values())
