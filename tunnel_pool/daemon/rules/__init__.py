"""What decides about torrents. Pure: records, settings and the time in, what to do out."""
