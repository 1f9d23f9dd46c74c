"""The reference of the image routes, as Markdown, from their table.

`python -m holdfast_images.web.reference` prints it; a test compares it with docs/reference/image-http-api.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from holdfast.web.problems import code_of, status_of
from holdfast.web.reference import reference as reference_of
from holdfast_images import errors
from holdfast_images.settings import Settings
from holdfast_images.web.extension import STATUSES, image_extension

CODES = "## Codes of problems"


def reference() -> str:
    """All operations of images, and every code of a problem that is theirs."""
    routes = image_extension("state", Settings()).routes
    operations, _, _ = reference_of(routes).partition(CODES)
    return "\n".join([operations.rstrip(), "", CODES, "", *_codes()])


def _codes() -> Iterator[str]:
    own, engine = "[errors of images](image-errors.md)", "[engine](http-api.md#codes-of-problems)"
    yield f"The classes are those of the {own}; the others are those of the {engine}."
    yield ""
    yield "| code | status | class | meaning |"
    yield "|---|---|---|---|"
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.ImageError):
            promise = (inspect.getdoc(kind) or "").splitlines()[0]
            yield f"| `{code_of(kind)}` | {status_of(kind, STATUSES)} | `{kind.__name__}` | {promise} |"


if __name__ == "__main__":
    print(reference())
