"""A node whose children share its UDP port: the main process' overlay, and a child's."""
