"""Container images as block devices: an archive in S3 becomes a verified file, a device and snapshots, each once."""
