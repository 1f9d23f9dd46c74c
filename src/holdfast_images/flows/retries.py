"""How often the steps are tried again: after any error, and after those of a class that has a limit of its own.

A number counts the tries after the first. A test pins the whole table.
"""

from __future__ import annotations

from holdfast import exponential, fixed
from holdfast_images.errors import CatalogUnavailable, DeviceBusy, SourceChanged, SourceUnavailable

NETWORK = {SourceUnavailable: 5, SourceChanged: 5}
FILES = {OSError: 2}
DEVICES = {DeviceBusy: 2}
DATABASE = {CatalogUnavailable: 5}

CHECK_EXISTS = exponential(3, limits=FILES)
DOWNLOAD = exponential(5, jitter=True, limits={**NETWORK, **FILES})
VALIDATE = fixed(2)
STORE_METADATA = exponential(5, jitter=True, limits={**DATABASE, **FILES})

CHECK_UNPACKED = exponential(3, limits={**DEVICES, **FILES})
CREATE_DEVICE = fixed(3)
EXTRACT_LAYERS = fixed(2)
VERIFY_LAYOUT = fixed(2)
UPDATE_DB = exponential(5, limits=DATABASE)

CHECK_SNAPSHOT = exponential(3, limits={**DEVICES, **FILES})
CREATE_SNAPSHOT = fixed(3)
REGISTER = exponential(5, jitter=True, limits=DATABASE)

CHECK_REMOVABLE = exponential(3)
REMOVE = fixed(3)
FORGET = exponential(5, jitter=True, limits=DATABASE)
