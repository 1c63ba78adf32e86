"""What a process or thread of ours may do no more: namespaces, seccomp filters, Landlock rules (Linux).

Nothing here needs a privilege, or a library beside libc. Imports `steering` for its BPF assembler.
"""
