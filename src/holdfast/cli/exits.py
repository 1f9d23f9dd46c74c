"""Exit codes, and how an error is told: `error: …`, then `hint: …`, or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from holdfast import errors


class ExitCode(IntEnum):
    """How a command ended; stable, for scripts to rely on."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    REFUSED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    STORE = 6
    FINDINGS = 7
    TIMEOUT = 124
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done; for a check: nothing was found",
    ExitCode.FAILURE: "it failed, or the job waited for did not succeed",
    ExitCode.USAGE: "the command or its input is wrong; nothing was changed",
    ExitCode.REFUSED: "a policy refuses the input: the image is not taken",
    ExitCode.NOT_FOUND: "no such job, queue, image, snapshot or object",
    ExitCode.CONFLICT: "the job is not in a state that allows this, or somebody else was faster",
    ExitCode.STORE: "the database is missing, unavailable, read-only, damaged, foreign, too new or unsafe",
    ExitCode.FINDINGS: "something was found: by check, repair, stalled, flows plan, or a command that verifies",
    ExitCode.TIMEOUT: "the time given with --timeout was up before the job had ended",
    ExitCode.INTERRUPTED: "interrupted by a signal",
    ExitCode.PIPE: "whoever read stdout went away before all was written",
}

Codes: TypeAlias = Mapping[type[errors.HoldfastError], ExitCode]

NO_CODES: Codes = {}
NO_FACTS: Mapping[str, object] = {}

_CODES: Codes = {
    errors.BadInput: ExitCode.USAGE,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.StateError: ExitCode.CONFLICT,
    errors.StoreError: ExitCode.STORE,
    errors.WaitTimeout: ExitCode.TIMEOUT,
}


def code_of(kind: type[errors.HoldfastError], more: Codes = NO_CODES) -> ExitCode:
    """The exit code of a class of errors: that of its nearest ancestor in the tables, else FAILURE."""
    codes = {**_CODES, **more}
    return next((codes[ancestor] for ancestor in kind.__mro__ if ancestor in codes), ExitCode.FAILURE)


def tell(
    kind: str,
    message: str,
    hint: str | None,
    code: ExitCode,
    *,
    as_json: bool,
    traceback: str | None = None,
    facts: Mapping[str, object] = NO_FACTS,
) -> ExitCode:
    """Write an error to stderr and return its exit code; `facts` are for JSON only."""
    if as_json:
        import json  # noqa: PLC0415 - help and completion do without

        content = {"type": kind, "message": message, "hint": hint, "exit_code": int(code), **facts}
        if traceback is not None:
            content["traceback"] = traceback
        text = json.dumps({"error": content}, ensure_ascii=False)
    else:
        text = (traceback or "") + _harmless(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))
    print(text, file=sys.stderr)
    return code


def _harmless(text: str) -> str:
    """Nothing in it can steer the terminal; line breaks stay."""
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )
