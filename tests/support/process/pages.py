"""What a browser would do with a page of the console."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.support.process.web import Reply

HOSTILE_TEXT = (
    "</code></td><script>alert('x')</script>\u202e<img src=x onerror=alert(1)>&amp;\x1b[31m{{ 7 * 7 }}"
)


class Seen(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.fields: dict[str, dict[str, str | None]] = {}
        """Attributes of the fields of forms, by name."""
        self.alerts: dict[str, str] = {}
        """Texts with the role `alert`, by id."""
        self._alert: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag in ("input", "textarea"):
            self.fields[found.get("name") or ""] = found
        if found.get("role") == "alert":
            self._alert = found.get("id") or ""
            self.alerts[self._alert] = ""
        for name, value in attrs:
            if name in ("href", "src", "action"):
                self.links.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._alert = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._alert is not None:
            self.alerts[self._alert] += data


def check_harmless(reply: Reply) -> Seen:
    """The page runs nothing and leads nowhere else."""
    assert reply.headers["content-type"].startswith("text/html"), reply
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy
    html = reply.body.decode()
    seen = Seen(html)
    assert not set(seen.tags) & {"script", "img", "iframe", "object", "embed", "style", "base"}, seen.tags
    assert seen.tags.count("svg") == 0
    assert seen.handlers == []
    for link in seen.links:
        assert link.startswith(("/", "#")), link
        assert not link.startswith("//"), link
    for character in "\u202e\u2066\u200b\x1b\x00\x07":
        assert character not in html, repr(character)
    return seen
