"""What is looked after: leftovers are removed, promises checked. Plans are pure, and carried out apart."""
