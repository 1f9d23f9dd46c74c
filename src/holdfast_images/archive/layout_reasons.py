"""Every reason that OCI layouts, docker-save archives and the act of extracting add to those of a tar archive. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class LayoutReason(StrEnum):
    """A stable code; `explanation` is its line in the reference."""

    explanation: str

    def __new__(cls, code: str, explanation: str) -> Self:
        """A code is a string; the explanation goes along."""
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.explanation = explanation
        return reason

    # --- OCI layouts and docker-save archives
    AMBIGUOUS_IMAGE = "AMBIGUOUS_IMAGE", "It can be read as more than one image, or as an image and a root file system."
    BAD_MANIFEST = "BAD_MANIFEST", "A manifest, index or configuration is malformed, too large or too deep."
    BAD_MEMBER = "BAD_MEMBER", "A member of the archive around the layers is neither a plain file nor a directory."
    BLOB_MISSING = "BLOB_MISSING", "A manifest names something that is not in the archive."
    DIGEST_MISMATCH = (
        "DIGEST_MISMATCH",
        "The content of a layer, manifest or configuration is not what its digest says.",
    )
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE", "A layer or manifest is of a kind that is not taken."
    NO_PLATFORM = "NO_PLATFORM", "The image is not made for this machine."
    TOO_MANY_LAYERS = "TOO_MANY_LAYERS", "There are more layers than an image may have."
    # --- while extracting
    SYMLINK_LOOP = "SYMLINK_LOOP", "The way to an entry leads through too many symbolic links."
    MEMORY_LIMIT = "MEMORY_LIMIT", "Reading it takes more memory than is given to it."
    OWNER_NOT_KEPT = "OWNER_NOT_KEPT", "Files belong to the user who extracted them: only root can give files away."
    XATTR_NOT_KEPT = "XATTR_NOT_KEPT", "The file system or the kernel would not take an extended attribute."
