"""One file per question about images."""
