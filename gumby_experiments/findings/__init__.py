"""Words for what tables say: a module for each experiment that has more to say than its figures."""
