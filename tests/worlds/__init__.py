"""Networks, swarms, peers, trackers and blocked routes for tests, and the functions that start them."""
