"""What holds an unpacked image: one protocol, several backends. The only place that starts programs."""
