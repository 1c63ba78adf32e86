"""qBittorrent's Web API (/api/v2), as its clients use it to drive the daemon."""
