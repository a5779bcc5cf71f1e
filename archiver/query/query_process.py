"""Main program of the process of one query: `python -I -S query_process.py PACKAGES…`.

It talks in JSON lines over its standard streams: it reads a request, answers with the names of the tables in
it, reads their files, and answers with the result or an error. It sets the limits of its process before it
parses anything. It ends when the other side closes its input, so it never outlives the daemon.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from archiver.query.duck import QueryTable, Result

NICENESS: Final = 10
"""Records are accepted and archived first."""
NESTED_MAX: Final = 250
"""Maximum of nested calls while values are converted: readers of JSON refuse what is nested deeper."""
_OTHER_BYTES: Final = 64 * 2**20
"""Address space for threads and for what libraries reserve, in addition to the memory of the query."""


def main(packages: list[str]) -> int:
    """Answer one query; the exit code is 0 also for an error that was reported."""
    # What a library prints must not get into the answer.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    source = sys.stdin.buffer
    request = json.loads(source.readline())
    # At the end, so that no package can replace a module of the standard library.
    sys.path += packages
    _bound_process(request["cpu_s"])
    from archiver.query import duck
    from archiver.query.duck import Limits
    from archiver.runtime.errors import ArchiverError

    try:
        duck.require_duckdb()
        importlib.import_module("pyarrow")
        # After the imports, whose size depends on the machine and is not the query's.
        _bound_memory(request["memory_bytes"])
        _send(output, {"names": sorted(duck.table_names(request["sql"]))})
        tables = [_table(one) for one in json.loads(source.readline())["tables"]]
        threading.Thread(target=_end_with, args=(source,), daemon=True).start()
        # A part is left for the conversion of values and for what DuckDB does not count.
        limits = Limits(request["memory_bytes"] // 2, request["threads"], request["setting"])
        with duck.asked(request["sql"], tables, limits) as result:
            answer = _encoded(result, request["rows_max"], request["bytes_max"])
    except ArchiverError as error:
        answer = _error(type(error).__name__, str(error), request["error_max"])
    except MemoryError:
        why = f"the query needs more memory than it may use; give it more with {request['setting']}"
        answer = _error("LimitReached", why, request["error_max"])
    except RecursionError:
        why = "a value of the result is nested too deep; cast it to text"
        answer = _error("InvalidInput", why, request["error_max"])
    output.write(answer + b"\n")
    output.flush()
    # Without an orderly end of the interpreter: DuckDB's threads and large objects would only take time.
    os._exit(0)


def _bound_process(cpu_s: int) -> None:
    # A service manager may forbid both (the systemd unit forbids the first), and no limit depends on them.
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        # Should the machine run out of memory, the kernel ends this process and not the daemon.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # A crash must not fill the disk, and the query writes no file at all.
    # The hard limits too, so that the process cannot raise them again.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # The soft limit ends the process with a signal of its own, which says why.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _bound_memory(memory_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    now_bytes = pages * resource.getpagesize()
    limit = now_bytes + memory_bytes + _OTHER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _table(document: dict[str, Any]) -> QueryTable:
    from archiver.query.duck import QueryTable

    return QueryTable(**{**document, "files": tuple(document["files"])})


def _end_with(source: BinaryIO) -> None:
    """End this process when the other side closes its input."""
    # Nothing is sent any more, so each byte would be an error too.
    source.read(1)
    os._exit(1)


def _encoded(result: Result, rows_max: int, bytes_max: int) -> bytes:
    """The result as JSON, up to the first limit; `cut` names it."""
    from archiver.query.values import faithful

    sys.setrecursionlimit(NESTED_MAX)
    columns = _json([{"name": name, "type": kind} for name, kind in result.columns])
    rows: list[bytes] = []
    left, cut = bytes_max - len(columns), "bytes" if len(columns) > bytes_max else None
    for row in () if cut else result.rows:
        if len(rows) == rows_max:
            cut = "rows"
            break
        encoded = _json([faithful(value) for value in row])
        left -= len(encoded) + 1
        if left < 0:
            cut = "bytes"
            break
        rows.append(encoded)
    columns = b"[]" if len(columns) > bytes_max else columns
    return b'{"columns":%b,"rows":[%b],"cut":%b}' % (columns, b",".join(rows), _json(cut))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _error(kind: str, message: str, length_max: int) -> bytes:
    return _json({"error": {"type": kind, "message": message[:length_max]}})


def _send(output: BinaryIO, document: object) -> None:
    output.write(_json(document) + b"\n")
    output.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
