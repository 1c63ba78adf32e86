"""tunnel-pool seeder: started by the demo, not by people."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("torrent")
    parser.add_argument("folder")
    parser.add_argument("host")
    parser.add_argument("--with-parent", type=int, required=True)
    parser.add_argument("--speed", type=int, default=0)
    parser.add_argument("--log-level")


def run(arguments: argparse.Namespace) -> int:
    from tunnel_pool.private_swarm import seeder

    seeder.main(arguments.torrent, arguments.folder, arguments.host, arguments.speed, arguments.with_parent)
    return 0
