"""A state directory has a key, which the network knows at one address: it belongs to one program at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunnel_pool.system.errors import UserError

LOCK_FILE = "lock"


@contextmanager
def state_of_our_own(state_dir: Path) -> Iterator[None]:
    """Hold the state folder, made if it is not there. Raises UserError when another program has it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cannot_keep_state(state_dir, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"another tunnel-pool has its state in {state_dir}; give each one a --state") from None
    try:
        yield
    finally:
        os.close(descriptor)


def cannot_keep_state(state_dir: Path, error: OSError) -> UserError:
    return UserError(f"cannot keep state in {state_dir}: {error.strerror}; choose another with --state")
