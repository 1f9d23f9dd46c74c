"""The flows: download, unpack, activate, all of them as one pipeline, and those that undo them."""
