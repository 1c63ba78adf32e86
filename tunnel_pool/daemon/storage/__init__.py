"""What the daemon keeps: records, settings and resume data in SQLite, and torrents' files on disks."""
