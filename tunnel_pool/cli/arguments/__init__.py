"""What the commands are told: options, where their values come from, and the parser."""
