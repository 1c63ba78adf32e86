"""One run of an experiment: nodes that are processes, the links between them, and samples of both."""
