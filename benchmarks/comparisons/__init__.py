"""One comparison of the engine with its peers per module; each yields figures."""
