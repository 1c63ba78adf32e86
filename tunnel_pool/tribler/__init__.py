"""Tribler's core with our tunnel community in the place of its own.

`python -m tunnel_pool.tribler --workers N` starts an unchanged Tribler so. Tribler with contrib/tribler/workers.patch
does it by itself, and calls `pooled_class`.
"""

import logging

logger = logging.getLogger(__name__)


def pooled_class(tribler_class: type, workers: int, circuit_removed: object) -> type:
    """Return Tribler's tunnel community over this many children; Tribler's own, and a line, where a pool can't run.

    `circuit_removed` is the topic of its notifications.
    """
    from tunnel_pool import hosting

    if workers < 1:
        return tribler_class
    if why_not := hosting.why_no_pool():
        logger.warning("Tunnels run in one process, as no pool of workers can run here: %s", why_not)
        return tribler_class
    from tunnel_pool.overlay.ground.config import MAX_SLOTS
    from tunnel_pool.pool.scaling import WorkerRange
    from tunnel_pool.tribler.community import AdoptionOptions, adopt

    workers = min(workers, MAX_SLOTS)
    return adopt(tribler_class, AdoptionOptions(workers=WorkerRange(workers, workers)), circuit_removed)
