"""Prints in one line which engine `--engine auto` runs here."""

from tunnel_pool.packet_engine import EngineChoice, choose


def main() -> None:
    if choose(EngineChoice.AUTO) is EngineChoice.NATIVE:
        print("packet engine: native")
    else:
        print("packet engine: python; for the native one, several times as fast, install Rust (https://rustup.rs)")


if __name__ == "__main__":
    main()
