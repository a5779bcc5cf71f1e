"""List sentences of more than 25 words in documents, docstrings, comments and messages: `PATH...`."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS_MAX = 25
_END = re.compile(r"(?<=[.!?:;])\s+")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _blanked(match: re.Match[str]) -> str:
    """As many lines as a fenced block has, so that line numbers stay right."""
    return "\n" * match[0].count("\n")


def _paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and headings, each with its line. Tables are no sentences."""
    held: list[str] = []
    begun = first
    for number, line in enumerate([*text.splitlines(), ""], start=first):
        stripped = line.strip().lstrip("#").strip()
        if not stripped or stripped.startswith(("- ", "* ", "|")) or re.match(r"\d+\. ", stripped):
            if held:
                yield begun, " ".join(held)
            held = []
        if stripped and not stripped.startswith("|"):
            if not held:
                begun = number
            held.append(stripped)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file: all of a document; strings and comments of Python code."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from _paragraphs(_FENCE.sub(_blanked, source), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from _paragraphs(token.string, token.start[0])


def long_sentences(path: Path) -> Iterator[tuple[int, int, str]]:
    """Line of the paragraph, number of words, and the sentence. Code and link targets count as one word."""
    for line, paragraph in texts(path):
        for sentence in _END.split(_CODE.sub("X", _LINK.sub(r"\1", paragraph))):
            count = len(sentence.split())
            if count > WORDS_MAX:
                yield line, count, sentence


def main(arguments: list[str]) -> int:
    """Print every long sentence of the named files and folders. Always 0: a list is no verdict."""
    for name in arguments:
        given = Path(name)
        found = sorted(
            path
            for path in ([given] if given.is_file() else given.rglob("*"))
            if path.suffix in (".py", ".md")
        )
        for path in found:
            if path.stem.endswith("_pb2"):
                continue
            for line, count, sentence in long_sentences(path):
                print(f"{path}:{line}: {count} words: {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
