"""Parts that any long-running program needs: logs, errors, files, clocks, state, and the service manager."""
