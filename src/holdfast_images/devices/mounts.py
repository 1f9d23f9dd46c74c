"""Is something mounted in a directory, or the directory mounted somewhere else? Answered from mountinfo. Pure."""

from __future__ import annotations

import re

_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts_on(path: str, mountinfo: str) -> list[str]:
    """The mount points that lie in `path`, show a part of it elsewhere, or use it as a layer."""
    mounts = [_parse(line) for line in mountinfo.splitlines() if " - " in line]
    # The last of the deepest mounts that hold the path is the one it is seen through.
    above = [mount for mount in mounts if _is_within(path, mount[2])]
    home = max(above, key=lambda mount: len(mount[2]), default=None)
    found = []
    for device, root, point, options in mounts:
        inside = _is_within(point, path)
        elsewhere = False
        if home is not None and device == home[0] and not _is_within(path, point):
            inner = _join(home[1], path[len(home[2].rstrip("/")) :])
            elsewhere = _is_within(root, inner)
        layer = any(_is_within(part, path) for part in re.split(r"[,:=]", options))
        if inside or elsewhere or layer:
            found.append(point)
    return found


def _parse(line: str) -> tuple[str, str, str, str]:
    before, _, after = line.partition(" - ")
    fields = before.split()
    options = after.split()[2] if len(after.split()) > 2 else ""
    return fields[2], unescaped(fields[3]), unescaped(fields[4]), unescaped(options)


def unescaped(text: str) -> str:
    """A field as the kernel means it."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _join(root: str, rest: str) -> str:
    return (root.rstrip("/") + "/" + rest.strip("/")).rstrip("/") or "/"
