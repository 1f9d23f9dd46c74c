"""Numbers, times and texts of others as the page shows them: the script counts on in the same words."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

from holdfast.views import BoundedCount

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
_LAST_TIME = 253_402_300_799_999  # the end of the year 9999, where datetime ends

_NAMES: Final = {
    0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x09: "TAB", 0x0A: "LF", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL", 0x85: "NEL",
    0x200B: "ZWSP", 0x200C: "ZWNJ", 0x200D: "ZWJ", 0x200E: "LRM", 0x200F: "RLM", 0x2028: "LS", 0x2029: "PS",
    0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO",
    0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xFEFF: "BOM",
}  # fmt: skip
_UNSEEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)


def inert(text: object) -> Markup:
    """A text of others for the page: what one would not see is drawn as a tag, and it turns no line around."""
    if isinstance(text, Markup):
        return text
    plain_text = str(text)
    if plain_text.isascii() and plain_text.isprintable():
        return escape(plain_text)
    parts: list[Markup] = []
    at = 0
    for found in _UNSEEN.finditer(plain_text):
        parts += [escape(plain_text[at : found.start()]), Markup('<span class="tag">{}</span>').format(_name(found[0]))]
        at = found.end()
    parts.append(escape(plain_text[at:]))
    return Markup("<bdi>{}</bdi>").format(Markup("").join(parts))


def inert_lines(text: object) -> Markup:
    """The same for a text of several lines, whose ends stay what they are."""
    return Markup("\n").join(inert(line) for line in str(text).split("\n"))


_ISO = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z")


def sentence(text: str, now: int) -> str:
    """A sentence of the engine's own, with its times as times of day."""
    today = f"{_moment(now):%Y-%m-%d}"
    return _ISO.sub(lambda found: found[2] if found[1] == today else f"{found[1]} {found[2][:5]}", text)


def plain(text: object) -> str:
    """The same for an attribute, where there are no tags."""
    return _UNSEEN.sub(lambda found: f"[{_name(found[0])}]", str(text))


def _name(character: str) -> str:
    point = ord(character)
    return _NAMES.get(point) or (unicodedata.name(character, "") if point > 0xFFFF else "") or f"U+{point:04X}"


def count(number: float) -> str:
    """1,204"""
    return f"{number:,}"


def bounded(number: BoundedCount) -> str:
    """1,204, or 10,000+ if there are more than were counted."""
    return f"{number.count:,}{'+' if number.capped else ''}"


def jobs(number: int | BoundedCount) -> str:
    """1 job, 2 jobs, 10,000+ jobs"""
    if isinstance(number, BoundedCount):
        return f"{bounded(number)} {'job' if number.count == 1 and not number.capped else 'jobs'}"
    return f"{number:,} {'job' if number == 1 else 'jobs'}"


def some(number: int, one: str, more: str | None = None) -> str:
    """1 finding, 2 findings"""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def span(milliseconds: float) -> str:
    """A length of time that grows while one looks: 12 s, 1 min 04 s, 41 min, 2 h 14 min, 3 d."""
    seconds = max(0, round(milliseconds / SECOND))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        minutes, rest = divmod(seconds, 60)
        return f"{minutes} min {rest:02d} s" if minutes < 10 and rest else f"{minutes} min"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds // 60 % 60:02d} min"
    return f"{seconds // 86400} d"


def duration(milliseconds: float | None) -> str:
    """A length of time that is measured: 4 ms, 1.1 s, 41 s, 2 min 05 s; a dash if it is not known."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1:
        return "<1 ms"
    if milliseconds < SECOND:
        return f"{round(milliseconds)} ms"
    return f"{milliseconds / SECOND:.1f} s" if milliseconds < 10 * SECOND else span(milliseconds)


def clock(milliseconds: int, now: int) -> str:
    """A time of day, with the date in front of it if it is not of today."""
    moment, today = _moment(milliseconds), _moment(now)
    return f"{moment:%H:%M:%S}" if moment.date() == today.date() else f"{moment:%Y-%m-%d %H:%M}"


def precise(milliseconds: int) -> str:
    """14:18:02.114"""
    return f"{_moment(milliseconds):%H:%M:%S}.{milliseconds % 1000:03d}"


def full(milliseconds: int) -> str:
    """2026-11-02 14:18:02.114 UTC"""
    return f"{_moment(milliseconds):%Y-%m-%d} {precise(milliseconds)} UTC"


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_TIME) / 1000, tz=UTC)


def short(identifier: str) -> str:
    """The end of an id, by which people know it."""
    return f"…{identifier[-6:]}" if len(identifier) > 6 else identifier


def percent(share: float) -> str:
    """A share as a percentage for SVG, between 0 and 100."""
    return f"{min(max(share, 0.0), 1.0) * 100:.2f}".rstrip("0").rstrip(".")
