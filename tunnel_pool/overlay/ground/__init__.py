"""What all rooms of the overlay build on, and which builds on none of them."""
