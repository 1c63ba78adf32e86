"""What tables say, in words: a module for each experiment that has more to say than its figures."""
