"""Container images as block devices: an archive in S3 becomes a verified file, a device and snapshots, each once.

The names below are imported when they are first used: `import holdfast_images` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast_images.manager import ImageManager
    from holdfast_images.settings import Settings, load_settings

__all__ = ["ImageManager", "Settings", "load_settings"]

_HOME = {
    "ImageManager": "holdfast_images.manager",
    "Settings": "holdfast_images.settings",
    "load_settings": "holdfast_images.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast_images' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
