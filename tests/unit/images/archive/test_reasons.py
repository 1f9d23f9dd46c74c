"""Every reason is a stable code with its line of explanation, and none is registered in vain."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast_images
from holdfast_images.archive.entry import Reason

SOURCES = {
    path: path.read_text(encoding="utf-8")
    for path in Path(holdfast_images.__file__).parent.rglob("*.py")
    if path.name != "reasons.py"
}


def test_a_code_is_its_own_name() -> None:
    assert [reason for reason in Reason if reason.name != reason or not re.fullmatch(r"[A-Z][A-Z_]+", reason)] == []


def test_every_reason_is_explained_in_one_sentence() -> None:
    assert [reason for reason in Reason if not re.fullmatch(r"[A-Z].*\.", reason.explanation)] == []


def test_every_reason_is_given_somewhere() -> None:
    given = set(re.findall(r"\bReason\.([A-Z_]+)", " ".join(SOURCES.values())))

    assert [reason for reason in Reason if reason.name not in given] == []
