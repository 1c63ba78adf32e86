"""What scenarios can ask for: classes whose methods are verbs."""
