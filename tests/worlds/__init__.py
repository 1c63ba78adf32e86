"""What tests run beside the program: networks, swarms, peers, trackers and walls, and how they are started."""
