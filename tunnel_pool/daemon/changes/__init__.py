"""Changes the daemon's torrents: what an owner may ask for (edits.py), and how it is planned and carried out."""
