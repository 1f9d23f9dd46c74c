"""Archives: one parser, one set of rules, one extractor. The only place that writes below a root file system."""
