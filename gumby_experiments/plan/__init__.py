"""What an experiment is to be: its configuration, its scenario in Gumby's grammar, and the verbs of its lines."""
