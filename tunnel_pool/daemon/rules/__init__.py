"""Rules that decide about torrents. Pure: records, settings and the time in, what to do out."""
