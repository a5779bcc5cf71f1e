"""Stands in for an intake worker: the channels of one, and no archive. Run as `python stand_in_worker.py MODE FOLDER
CONTROL CONNECTIONS RECORDS`; it imports nothing of the project, so it starts at once.

It writes each of the settings that it gets into FOLDER. A client says in its first byte what to do: `+` counts one
record and answers, `x` ends the process at once, and `.` is kept open.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
from pathlib import Path

LENGTH = struct.Struct(">I")
REPORT_S = 0.05


class Worker:
    """One process."""

    def __init__(
        self,
        mode: str,
        folder: Path,
        control: socket.socket,
        connections: socket.socket,
        records: socket.socket,
    ) -> None:
        self.mode, self.folder = mode, folder
        self.control, self.connections, self.requests = control, connections, records
        self.records = 0
        self.received = 0
        self.kept: list[socket.socket] = []

    def run(self) -> int:
        """Until the channel ends; the exit code."""
        (self.folder / f"started-{os.getpid()}").write_text(json.dumps(dict(os.environ)), encoding="utf-8")
        if self.mode == "crashes":
            return 3
        if not self.settings():
            return 0
        if self.mode == "deaf":
            self.wait_for_a_signal()
        self.send(ready=True)
        if self.mode == "silent":
            self.wait_for_a_signal()
        while True:
            # Those of `full` stay in the channel.
            channels = [self.control] if self.mode == "full" else [self.control, self.connections]
            readable, _, _ = select.select(channels, [], [], REPORT_S)
            if self.control in readable and not self.settings():
                return 0
            if self.connections in readable:
                self.serve()
            self.send()

    @staticmethod
    def wait_for_a_signal() -> None:
        """As a process that hangs."""
        while True:
            select.select([], [], [], 1000)

    def settings(self) -> bool:
        """Keep what the daemon sends; False at the end of the channel."""
        head = self.exactly(LENGTH.size)
        body = head and self.exactly(*LENGTH.unpack(head))
        if not body:
            return False
        self.received += 1
        path = self.folder / f"settings-{os.getpid()}-{self.received}"
        path.with_suffix(".part").write_bytes(body)
        path.with_suffix(".part").rename(path)
        return True

    def exactly(self, size: int) -> bytes:
        """So many bytes, or none at the end."""
        found = b""
        while len(found) < size:
            more = self.control.recv(size - len(found))
            if not more:
                return b""
            found += more
        return found

    def serve(self) -> None:
        """One connection."""
        data, descriptors, _, _ = socket.recv_fds(self.connections, 8, 2)
        if not data:
            return
        client, far = (socket.socket(fileno=one) for one in descriptors)
        asked = client.recv(1)
        if asked == b"x":
            os._exit(7)
        if asked == b".":
            self.kept += [client, far]
            return
        self.records += 1
        self.send()
        client.sendall(b"%d" % os.getpid())
        client.close()
        far.close()

    def send(self, **more: object) -> None:
        """The counters."""
        listener = {"produced_records": self.records, "requests": {"Produce": self.records}, "connections": 9}
        writer = {"records_accepted": self.records, "queue_bytes": 7}
        data = json.dumps({"listener": listener, "writer": writer, **more}).encode()
        self.control.sendall(LENGTH.pack(len(data)) + data)


if __name__ == "__main__":
    ends = [socket.socket(fileno=int(one)) for one in sys.argv[3:]]
    sys.exit(Worker(sys.argv[1], Path(sys.argv[2]), *ends).run())
