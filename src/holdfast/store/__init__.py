"""Where jobs live: one protocol of domain verbs, and the databases that implement it."""
