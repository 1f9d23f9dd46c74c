"""Is an error a passing one, of the machine or of the database, so that the same call may work later?"""

from __future__ import annotations

import errno
import os

from holdfast.errors import StoreReadOnly, StoreUnavailable

PASSING_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})


def is_passing(error: BaseException) -> bool:
    """Does waiting help? A place that is wrong, damaged or not ours to write stays so."""
    if isinstance(error, StoreUnavailable):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in PASSING_ERRNOS:
            return True
        cause = cause.__cause__
    # SQLite says only that it cannot open the file, not why.
    return isinstance(error, StoreReadOnly) and _has_no_descriptors()


def _has_no_descriptors() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in PASSING_ERRNOS
    return False
