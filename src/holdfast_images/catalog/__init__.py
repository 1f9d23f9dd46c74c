"""The tables of images, devices, snapshots and locks, in the database of the engine."""
