"""The daemon's storage: records, settings and resume data in SQLite, and torrents' files on disks."""
