"""Packaging. Ranges here, the exact versions that CI runs with in constraints.txt.

The packet engine is built where cargo is. TUNNEL_POOL_BUILD_ENGINE=python leaves it out, and the slower Python engine
runs; TUNNEL_POOL_BUILD_ENGINE=native has an installation without it fail. What is built without the engine is a wheel
for any machine, so that nobody takes it for one that has it.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools_rust import Binding, RustExtension

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "tunnel_pool/__init__.py").read_text())
assert VERSION is not None
# What a program needs that embeds the pool.
EMBEDDED = [
    "cryptography>=42",
    "h11>=0.14,<1",
    "protobuf>=6.31.1,<8",
    "psutil>=5.9,<8",
    "pyipv8>=3.2.1,<4",
]
TRIBLER = ["libtorrent>=2.0.13,<3"]  # beyond that, what Tribler itself needs
# What the command `tunnel-pool` needs besides.
CLI = [
    "aiohttp>=3.10,<4",
    "aiohttp-socks>=0.10,<1",
    "defusedxml>=0.7.1,<1",
    "ipv8-rust-tunnels>=0.1.51,<0.2",
    "libtorrent>=2.1.1,<3",  # whose settings were judged, one by one
    "maxminddb>=2.6,<4",
    "msgspec>=0.19,<1",
    "platformdirs>=4,<5",
    "prometheus-client>=0.20,<1",
    "regex>=2024.4",
    "rich>=14.3,<16",
    "Twisted>=24.7",
]
EXPERIMENTS = [
    "jinja2>=3.1,<4",
    "matplotlib>=3.8,<4",
    "networkx>=3.2,<4",
    "numpy>=1.26,<3",
    "pandas>=2.2,<4",
    "pycapnp>=2,<3; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
    "PySocks>=1.7.1,<2",
    "scipy>=1.12,<2",
    "simpy>=4.1,<5",
    "statsmodels>=0.14.4,<1",
]
# They are at the top of the source, and of tunnel_pool once installed.
FOLDERS = ("child", "gumby_experiments", "rpc", "socks5")


def packages() -> list[str]:
    """Return the names of all packages; those of FOLDERS are found where they are, and not by their links."""
    tops = {"tunnel_pool": "tunnel_pool", **{folder: f"tunnel_pool.{folder}" for folder in FOLDERS}}
    return [
        ".".join((name, *init.parent.relative_to(HERE / folder).parts))
        for folder, name in tops.items()
        for init in sorted((HERE / folder).rglob("__init__.py"))
    ]


def engine() -> list[RustExtension]:
    """Return the packet engine, if it is wanted and can be built here. Ends the program when it must be and can't."""
    wanted = os.environ.get("TUNNEL_POOL_BUILD_ENGINE", "auto")
    if wanted not in ("auto", "native", "python"):
        sys.exit(f"TUNNEL_POOL_BUILD_ENGINE is {wanted!r}: it has to be auto, native or python")
    why_not = "" if wanted == "python" else why_no_engine()
    if why_not and wanted == "native":
        sys.exit(f"The packet engine can't be built: {why_not}")
    if why_not:
        print(f"warning: tunnel-pool is built without its packet engine, which is faster: {why_not}", file=sys.stderr)
    if why_not or wanted == "python":
        return []
    return [
        RustExtension(
            "tunnel_pool.packet_engine._native",
            path="tunnel_pool/packet_engine/Cargo.toml",
            binding=Binding.PyO3,
            features=["python"],
            args=["--locked"],
            py_limited_api=True,
            debug=False,
        )
    ]


def why_no_engine() -> str:
    """Return why this machine can't build the engine, empty when it can."""
    needed = tomllib.loads((HERE / "tunnel_pool/packet_engine/Cargo.toml").read_text())["package"]["rust-version"]
    try:
        said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
        subprocess.run(["cargo", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"there is no Rust here (rustc and cargo, {needed} or newer)"
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, needed.split(".")[:2])):
        return f"it needs Rust {needed} or newer, and this is {said.strip()}"
    return ""


ENGINE = engine()

setup(
    name="tunnel-pool",
    version=VERSION[1],
    description="The anonymous BitTorrent daemon that uses every core",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="GPL-3.0-or-later",
    python_requires=">=3.11",
    packages=packages(),
    package_dir={f"tunnel_pool.{folder}": folder for folder in FOLDERS},
    package_data={
        "tunnel_pool": ["py.typed"],
        "tunnel_pool.gumby_experiments": ["experiments/*"],
        "tunnel_pool.gumby_experiments.results": ["*.j2", "style.css"],
        "tunnel_pool.cut": ["components.toml"],
        "tunnel_pool.daemon.server": ["page/*"],
        "tunnel_pool.packet_engine": ["_native.pyi"],
        "tunnel_pool.rpc": ["control.proto", "control_pb2.pyi"],
    },
    rust_extensions=ENGINE,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ENGINE else {},
    entry_points={"console_scripts": ["tunnel-pool = tunnel_pool.__main__:main"]},
    install_requires=EMBEDDED,
    extras_require={
        "cli": CLI,
        "tribler": TRIBLER,
        "bench": [*CLI, "matplotlib>=3.8,<4"],
        "experiments": [*CLI, *EXPERIMENTS],
        "dev": [
            *CLI,
            *EXPERIMENTS,
            "axe-core-python==0.1.0",  # carries axe-core, which judges the page
            "grpcio-tools==1.76.0",  # writes rpc/control_pb2.py; decides which protobuf can read it
            "hypothesis>=6.100,<7",
            "mmdb-writer>=0.2.5,<1",
            "marshmallow<4",  # py-ipv8's REST views, which tests run, need aiohttp-apispec, and that this
            "mypy>=1.11,<3",
            "mypy-protobuf>=4,<5",
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.6,<4",
            "qbittorrent-api>=2026.8,<2028",
            "ruff>=0.6,<1",
            "types-defusedxml",
            "types-regex",
            "schemathesis>=4,<5",
            "selenium>=4.20,<5",
            "setuptools-rust>=1.10,<2",
            "stig>=0.13a0,<1",
            "transmission-rpc>=7,<8",
            "types-protobuf",
            "types-psutil",
        ],
    },
)
