"""The verbs of scenarios: methods of these classes."""
