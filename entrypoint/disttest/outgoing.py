"""The filter that every text passes before it leaves a process: into logs, reports, messages and the terminal.

Code that writes text passes it through :data:`outgoing`. A plugin may install a filter there, for example one that hides
secrets; without one each text passes unchanged. The processes of a run share what their filters know through one inherited
descriptor. Texts that are longer than a message or a line of the journal can carry are cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# In a line that was cut the last string has no end.
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)')


class OutputFilter:
    """Passes everything; a plugin overrides the methods."""

    @property
    def active(self) -> bool:
        """Whether any text changes."""
        return False

    @property
    def shared(self) -> int:
        """Descriptor that a child process must inherit to know what this filter knows; -1 if there is none."""
        return -1

    def share(self, _fd: int | None = None) -> None:
        """Share with processes that inherit the descriptor; an inherited one is taken over."""

    def hide(self, _values: Iterable[str]) -> tuple[str, ...]:
        """Hide values from here on in every process of the run; return those that cannot be hidden."""
        return ()

    def learn(self, _data: bytes) -> None:
        """Learn from the output of a program what to hide."""

    def data(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:  # noqa: ARG002
        """Filter bytes; with ``cut_…`` the border may lie inside something that the filter changes."""
        return data

    def json(self, data: bytes) -> bytes:
        """Filter the strings of JSON data; numbers, which may look like a value that is hidden, stay as they are."""
        if self.data(data) is data:
            return data
        return _STRING.sub(lambda match: self.data(match[0]), data)

    def held_back(self, _data: bytes) -> int:
        """Number of bytes at the end that may be the beginning of something that the filter changes."""
        return 0

    def text(self, text: str) -> str:
        """Filter a text."""
        if not self.active:
            return text
        # Names of files and texts of tests may contain lone surrogates, which must survive the filter.
        data = text.encode("utf-8", "surrogatepass")
        filtered = self.data(data)
        return text if filtered is data else filtered.decode("utf-8", "surrogatepass")

    def tree(self, value: Any) -> Any:
        """Filter all strings in lists, tuples and dictionaries; keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.tree(key): self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        # Subclasses, such as named tuples, take other arguments and pass unchanged.
        if type(value) is tuple:
            return tuple(self.tree(item) for item in value)
        return value


class Outgoing(OutputFilter):
    """The filter of a process. It delegates to a plugin's filter, once one is installed."""

    def __init__(self) -> None:
        self._filter = OutputFilter()

    def install(self, installed: OutputFilter) -> None:
        """Pass texts through a plugin's filter from here on."""
        self._filter = installed

    @property
    def active(self) -> bool:
        """Whether the installed filter changes any text."""
        return self._filter.active

    @property
    def shared(self) -> int:
        """Descriptor of the installed filter."""
        return self._filter.shared

    def share(self, fd: int | None = None) -> None:
        """Share the installed filter's knowledge."""
        self._filter.share(fd)

    def hide(self, values: Iterable[str]) -> tuple[str, ...]:
        """Hide values with the installed filter."""
        return self._filter.hide(values)

    def learn(self, data: bytes) -> None:
        """Pass a program's output to the installed filter."""
        self._filter.learn(data)

    def data(self, data: bytes, *, cut_start: bool = False, cut_end: bool = False) -> bytes:
        """Filter bytes with the installed filter."""
        return self._filter.data(data, cut_start=cut_start, cut_end=cut_end)

    def held_back(self, data: bytes) -> int:
        """Return the number of bytes that the installed filter holds back."""
        return self._filter.held_back(data)


class FilteredStream:
    """Filters a stream that arrives in pieces. It holds back bytes that the filter may change with the next piece."""

    def __init__(self, output_filter: OutputFilter) -> None:
        self._filter = output_filter
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return the part that can be shown."""
        buffer = self._held + data
        end = len(buffer) - self._filter.held_back(buffer)
        shown, self._held = buffer[:end], buffer[end:]
        # A line that names a value to hide is held back until it is whole: its beginning may be a word of many other lines.
        self._filter.learn(shown)
        return self._filter.data(shown)

    def finish(self) -> bytes:
        """Return the bytes that were held back: the stream is over."""
        held, self._held = self._held, b""
        self._filter.learn(held)
        return self._filter.data(held, cut_end=True)


outgoing = Outgoing()
"""The filter of this process."""


# A skip or a failure with a text over 64 MiB did not fit into a message and ended its rank.
LONGEST_TEXT = 256 * 1024
"""Characters of one text, which is more than a report shows."""


def shorten(text: str) -> str:
    """Keep the head and the tail of a text that is too long; return any other text unchanged."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    mark = f"[disttest: {len(text) - 2 * half} characters cut: a report has room for {LONGEST_TEXT:,}]"
    return f"{text[:half]}\n\n{mark}\n\n{text[-half:]}"


def shorten_all(value: Any) -> Any:
    """Shorten every text in a tree of dicts and lists."""
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, dict):
        return {shorten_all(key): shorten_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shorten_all(item) for item in value]
    return value
