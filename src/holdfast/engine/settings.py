"""How a worker behaves."""

from __future__ import annotations

import msgspec

from holdfast.errors import SettingsError


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker behaves; all times in seconds."""

    concurrency: int = 32
    lease: float = 30.0
    recovery_interval: float = 5.0
    timeout_grace: float = 5.0
    stop_grace: float = 25.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.lease < 0.1 or self.recovery_interval <= 0:
            raise SettingsError(f"worker settings out of range: {self}", hint="concurrency >= 1, lease >= 0.1 s")
