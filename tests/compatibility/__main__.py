"""Runs every Kafka client and tool against a listener and writes what works: `make kafka-compat`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.compatibility import tools
from tests.compatibility.checks import run, scene_listener
from tests.compatibility.compared_clients import CLIENTS
from tests.compatibility.page import page


def main() -> None:
    """Write the page, and print what does not work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    results = []
    with (
        tempfile.TemporaryDirectory() as folder,
        scene_listener(Path(folder) / "archiver", CLIENTS, tools.TOPICS) as listener,
    ):
        for client in CLIENTS:
            result = run(client, listener)
            results.append(result)
            for feature, reason in result.cells.items():
                if reason:
                    print(f"{client.name}: {feature}: {reason}", flush=True)
        found = tools.run(listener, Path(folder))
        for name, reason in found.items():
            if reason:
                print(f"{name}: {reason}", flush=True)
    output.write_text(page(results, found, tools.release_of_kcat(), tools.RELEASE), encoding="utf-8")


if __name__ == "__main__":
    main()
