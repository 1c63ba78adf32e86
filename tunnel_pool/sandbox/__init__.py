"""Takes rights from processes and threads of ours: namespaces, seccomp filters, Landlock rules (Linux).

Nothing here needs a privilege, or a library beside libc. Imports `steering` for its BPF assembler.
"""
