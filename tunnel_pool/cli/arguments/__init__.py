"""The arguments of the commands: options, where their values come from, and the parser."""
