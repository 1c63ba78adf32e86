"""Descriptor numbers of the streams, as the child sees them. Pure."""

STDIN, STDOUT, STDERR = 0, 1, 2
CONTROL_IN, CONTROL_OUT = 3, 4
DATA_IN, DATA_OUT = 5, 6
EXIT_IN, EXIT_OUT = 7, 8
SOCKETS = 9  # a Unix socket over which the child is given sockets (SCM_RIGHTS)

ALL = frozenset(range(SOCKETS + 1))

REQUESTS = 3  # the only other descriptor of the template (child/template.py): its Unix socket
