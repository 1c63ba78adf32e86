"""A master-worker pool of child processes: how many, when to restart, who builds the next circuit."""
