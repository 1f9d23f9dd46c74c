"""Where images come from. The only place that talks to the network."""
