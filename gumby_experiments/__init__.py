"""Experiments as data: scenarios in Gumby's grammar, what runs them, and what is made of what they measure."""
