"""Hidden swarms: their circuits, introduction points, rendezvous points, and who is asked for a seeder."""
