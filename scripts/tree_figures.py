"""Print the figures by which docs/architecture.md describes the tree: sizes, comments, importers, private words."""

from __future__ import annotations

import io
import re
import statistics
import sys
import tokenize
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("archiver", "intake", "reconcile")
WORDS = re.compile(r"\b(told|look|wanted|nobody|somebody)\b", re.IGNORECASE)
WIDE = 100


def main() -> int:
    """Print one line a figure. Generated protobuf code counts nowhere."""
    paths = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.stem.endswith("_pb2") and path.stem != "__init__"
    ]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    lines = [text.splitlines() for text in texts]
    total = sum(map(len, lines))
    comments = sum(
        token.type == tokenize.COMMENT
        for text in texts
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    wide = sum(len(line) > WIDE for each in lines for line in each)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    single = sum(len(graph.find_modules_that_directly_import(name)) == 1 for name in names & graph.modules)
    loose = [path.name for path in paths if path.parent == ROOT / "archiver"]
    print(
        f"modules: {len(paths)}, lines: {total:,}, median file: {statistics.median(map(len, lines)):g} lines"
    )
    print(f"modules with one importer: {single}")
    print(f"comment lines: {comments / total:.1%}, lines over {WIDE} characters: {wide / total:.1%}")
    print(f"loose modules in archiver/: {', '.join(loose)}")
    counts = dict.fromkeys(("told", "look", "wanted", "nobody", "somebody"), 0)
    for text in texts:
        for match in WORDS.finditer(text):
            counts[match[0].lower()] += 1
    print("private words: " + ", ".join(f"{word} {count}" for word, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
