"""The table of what is measured of each process every second: its columns, their units and meanings. Pure."""

MAIN, WORKER = "main", "worker"
COLUMNS = {
    "time_s": ("s", "since the run began"),
    "node": ("", "number in the scenario"),
    "role": ("", "of the node"),
    "process": ("", f"{MAIN}, or {WORKER} for what that started"),
    "pid": ("", ""),
    "cpu_user_s": ("s", "CPU since the process began, in user mode"),
    "cpu_system_s": ("s", "and in the kernel"),
    "rss_bytes": ("bytes", "resident memory"),
    "read_bytes": ("bytes", "read from disks since the process began, where the system tells"),
    "written_bytes": ("bytes", "and written to them"),
}
