"""Names and numbers of images, devices and snapshots: validated, and derived so that they never change. Pure.

Everything that is derived here is found again by a later version of this program on disks and in pools: the functions
are stable for ever, and a test pins their answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

import msgspec

from holdfast_images.errors import InvalidName

THIN_IDS = 1 << 24
"""How many device ids a thin pool has: dm-thin allows 24 bits."""

KEY_BYTES = 1024
"""The longest key S3 allows, in bytes of UTF-8."""

SNAPSHOT_NAME_CHARACTERS = 127
"""DM_NAME_LEN of the kernel, without the final NUL."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FOUR_NUMBERS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_IMAGE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The characters that dmsetup does not mangle into \xNN, without which name and path would differ.
_DM_NAME = re.compile(r"[A-Za-z0-9#+:=@_][A-Za-z0-9#+.:=@_-]{0,126}")
_DEVICE_NAME = re.compile(r"thin-\d+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,8}")
_FILE_MARK = re.compile(r"[0-9a-f]{16}|incoming")
_ENCODED_TRAVERSAL = re.compile(r"%(25)*(2e|2f|5c|00)", re.IGNORECASE)
_ARCHIVE_SUFFIX = re.compile(r"\.(tar|tgz|tzst|tar\.(gz|zst|zstd|xz|bz2))$", re.IGNORECASE)


class Fingerprint(msgspec.Struct, frozen=True):
    """What the kernel changes whenever a file's content changes: while it is equal, the digest still holds."""

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int


# --- validated values -----------------------------------------------------------------------------------------


def valid_bucket(text: str) -> str:
    """The name of a bucket by S3's rules; InvalidName if it is none."""
    if not _BUCKET.fullmatch(text) or ".." in text or _FOUR_NUMBERS.fullmatch(text):
        raise InvalidName(
            f"{text!r} is no bucket name",
            hint="3 to 63 lower-case letters, digits, dots and hyphens, with a letter or digit at both ends",
        )
    return text


def valid_key(text: str) -> str:
    """The key of an object that can hide nothing from whoever reads, logs or joins it; InvalidName if it is none."""
    if reason := _wrong_with_key(text):
        raise InvalidName(f"the key {text[:200]!r} {reason}", hint="name the object as the bucket lists it")
    return text


def _wrong_with_key(text: str) -> str | None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return "is not Unicode"
    if not 1 <= length <= KEY_BYTES:
        return f"has {length} bytes; 1 to {KEY_BYTES} are allowed"
    # C0, DEL and C1; the two separators break lines in logs as a newline does.
    if any(character < " " or "\x7f" <= character <= "\x9f" or character in "\u2028\u2029" for character in text):
        return "has control characters"
    if text.startswith("/") or text.endswith("/") or "//" in text:
        return "has an empty part: it begins or ends with '/' or has '//'"
    if any(part in {".", ".."} for part in re.split(r"[/\\]", text)):
        return "has a '.' or '..' part"
    if _ENCODED_TRAVERSAL.search(text):
        return "has an encoded dot, slash or NUL"
    return None


def valid_image_id(text: str) -> str:
    """What may name an image: a file name and a part of a device name as it stands; InvalidName if it may not."""
    if not _is_image_id(text):
        raise InvalidName(
            f"{text[:200]!r} is no image id",
            hint="1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit, without '..'",
        )
    return text


def _is_image_id(text: str) -> bool:
    return _IMAGE_ID.fullmatch(text) is not None and ".." not in text


def valid_snapshot_name(text: str) -> str:
    """What may name a snapshot's device, and is no name the device mapper or an image's device has."""
    if not _DM_NAME.fullmatch(text) or text == "control" or _DEVICE_NAME.fullmatch(text):
        raise InvalidName(
            f"{text[:200]!r} is no snapshot name",
            hint=f"1 to {SNAPSHOT_NAME_CHARACTERS} letters, digits and #+-.:=@_, not beginning with '-' or '.';"
            " 'control' and thin-<number> are taken",
        )
    return text


def valid_sha256(text: str) -> str:
    """A SHA-256 digest as 64 lower-case hexadecimal digits; `sha256:` in front is taken, as registries write it."""
    digest = text.removeprefix("sha256:").lower()
    if not _SHA256.fullmatch(digest):
        raise InvalidName(f"{text[:200]!r} is no SHA-256 digest", hint="64 hexadecimal digits: sha256sum <file>")
    return digest


# --- derived values -------------------------------------------------------------------------------------------


def image_id_of(bucket: str, key: str) -> str:
    """The image id of a source that was given none: its base name, and 12 digits that tell it from all others."""
    base = _ARCHIVE_SUFFIX.sub("", key.rstrip("/").rpartition("/")[2])
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", base)
    slug = re.sub(r"\.{2,}", ".", slug)[:40].strip("._-")
    # NUL is in neither name, so no two pairs give the same text.
    mark = _digest(f"{bucket}\0{key}").hex()[:12]
    return f"{slug or 'image'}-{mark}"


def file_name(image_id: str, checksum: str = "") -> str:
    """The name of an image's file; with a checksum, of content that has replaced, or is to replace, other content."""
    return f"{valid_image_id(image_id)}{f'@{checksum[:16]}' if checksum else ''}.tar"


def recorded_file_name(image_id: str, checksum: str, local_path: str) -> str:
    """The name of a recorded image's file: of the recorded path only the name counts, and only if it is one of two."""
    later = file_name(image_id, checksum)
    return later if local_path.rpartition("/")[2] == later else file_name(image_id)


def incoming_name(image_id: str) -> str:
    """The name of a file until it is known what content of its image it holds."""
    return f"{valid_image_id(image_id)}@incoming.tar"


def image_of_file(name: str) -> str | None:
    """The image whose file it is by its name; None if no image's file has such a name."""
    stem = name.removesuffix(".tar")
    image_id, _, mark = stem.partition("@")
    is_ours = stem != name and (not mark or _FILE_MARK.fullmatch(mark)) and stem != f"{image_id}@"
    return image_id if is_ours and _is_image_id(image_id) else None


def device_number(text: str) -> int | None:
    """The number that a recorded device id spells; None if it spells none that can be a device's."""
    if not _NUMBER.fullmatch(text) or (text != "0" and text.startswith("0")):
        return None
    return int(text) if int(text) < THIN_IDS else None


def device_id_candidates(image: str) -> Iterator[int]:
    """Thin device ids for an image, the first for almost all; the next when another image holds it; each once."""
    return _candidates(f"image\0{image}")


def snapshot_id_candidates(origin_device_id: int, name: str) -> Iterator[int]:
    """Thin device ids for a snapshot, as for an image's device."""
    return _candidates(f"snapshot\0{origin_device_id}\0{name}")


def device_name(device_id: int) -> str:
    """The name of an image's device."""
    return f"thin-{device_id}"


def default_snapshot_name(image: str) -> str:
    """The name of an image's snapshot if none is given."""
    return f"snap-{image}"


def ext4_uuid(image: str) -> str:
    """The UUID of the file system of an image: how its device is known again. Version 8 of RFC 9562."""
    value = int.from_bytes(_digest(f"ext4\0{image}")[:16], "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _candidates(text: str) -> Iterator[int]:
    digest = _digest(text)
    first = int.from_bytes(digest[:3], "big")
    # An odd step visits every id of a power of two before the first comes again.
    step = int.from_bytes(digest[3:6], "big") | 1
    return ((first + number * step) % THIN_IDS for number in range(THIN_IDS))


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()
