"""From the settings of a command to those of the image manager."""

from __future__ import annotations

import os
from typing import Any

from holdfast.cli.settings import Settings as CommandSettings
from holdfast_images.settings import Settings, load_settings


def settings_of(settings: CommandSettings, **flags: Any) -> Settings:
    """As the file, the environment and these flags say, the flags strongest."""
    return load_settings(settings.file, os.environ, flags)
