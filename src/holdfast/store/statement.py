"""The first words of a statement, past all that a database skips before them: blanks, semicolons, comments."""

from __future__ import annotations

import re
from typing import NamedTuple

_BLANK = re.compile(r"[\s;\ufeff]*")
_WORD = re.compile(r"[^\W\d][\w$]*")
_COMMENT_MARK = re.compile(r"/\*|\*/")


class Comments(NamedTuple):
    """How a dialect writes comments."""

    line_end: re.Pattern[str]
    nested: bool


SQLITE_COMMENTS = Comments(re.compile(r"\n"), nested=False)
POSTGRES_COMMENTS = Comments(re.compile(r"[\n\r]"), nested=True)


def leading_words(statement: str, count: int, comments: Comments) -> list[str]:
    """The first words in lower case, fewer if something else comes before; takes time in proportion to the text."""
    words: list[str] = []
    at = 0
    while len(words) < count:
        found = _WORD.match(statement, _past_skipped(statement, at, comments))
        if found is None:
            break
        words.append(found[0].lower())
        at = found.end()
    return words


def _past_skipped(statement: str, at: int, comments: Comments) -> int:
    while True:
        blank = _BLANK.match(statement, at)
        at = blank.end() if blank else at
        if statement.startswith("--", at):
            end = comments.line_end.search(statement, at)
            at = end.end() if end else len(statement)
        elif statement.startswith("/*", at):
            at = _past_block(statement, at + 2, comments)
        else:
            return at


def _past_block(statement: str, at: int, comments: Comments) -> int:
    """Behind the end of a comment whose beginning is behind us; one that has no end goes to the end of the text."""
    if not comments.nested:
        end = statement.find("*/", at)
        return len(statement) if end < 0 else end + 2
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(statement, at)
        if mark is None:
            return len(statement)
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at
