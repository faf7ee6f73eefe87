"""A packet as Markdown: a page for people, and the body of an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from disttest.extras.explain.packet import LogFile, Packet
from disttest.reports.past_runs import SHOWN_COMMIT, when
from disttest.reports.summary import code, escape, exact_code, fenced
from disttest.reports.text import one_line, shorten, size


def packet_markdown(packet: Packet) -> str:
    """Render everything but the files themselves."""
    return "\n".join([f"# {code(packet.test)}", "", *_body(packet, most=200_000), *_files(packet)]) + "\n"


def issue_body(packet: Packet, most: int) -> str:
    """Render the body of an issue.

    Args:
        packet: of the test.
        most: characters; tracebacks and stacks are shortened until the text fits.
    """
    for evidence in (20_000, 8_000, 2_000, 0):
        text = "\n".join(_body(packet, most=evidence)) + "\n"
        if len(text) <= most:
            return text
    return shorten(text, most)


def _body(packet: Packet, *, most: int) -> Iterator[str]:
    yield f"**{escape(one_line(packet.finding, 1000))}**"
    yield ""
    yield from (f"- {line}" for line in _facts(packet))
    yield ""
    yield "### Repeat"
    yield ""
    yield from fenced("\n".join([packet.repeat, *packet.further.values()]))
    if packet.history is not None:
        yield "### History"
        yield ""
        lines = [packet.history.sparks, packet.history.rate, packet.history.streak]
        yield from fenced("\n".join(line for line in lines if line))
    if most:
        yield from _evidence(packet, most)
    yield "### Environment"
    yield ""
    yield from (f"- {line}" for line in _environment(packet.environment, packet.run))
    yield ""


def _facts(packet: Packet) -> Iterator[str]:
    yield f"test: {code(packet.test)}"
    kind = f" ({packet.kind})" if packet.kind not in ("", packet.outcome) else ""
    yield escape(f"outcome: {packet.outcome}{kind} in {packet.phase}")
    if packet.place:
        yield f"place: {code(packet.place)}"
    if packet.culprit is not None:
        victims = f"; victims: {', '.join(map(str, packet.victims))}" if packet.victims else ""
        yield escape(f"culprit: rank {packet.culprit}{victims}")
    yield from (escape(one_line(line, 400)) for line in (*packet.attempts, *packet.notes))


def _evidence(packet: Packet, most: int) -> Iterator[str]:
    parts = {
        "Ranks": "\n".join(packet.ranks),
        "Findings of plugins": "\n".join(packet.sections),
        "Tracebacks and stacks": "\n\n".join(packet.evidence),
    }
    if any(map(str.strip, parts.values())):
        yield "### Evidence"
        yield ""
    for title, text in parts.items():
        if text.strip():
            yield f"<details><summary>{title}</summary>"
            yield ""
            yield from fenced(shorten(text, most).strip("\n"))
            yield "</details>"
            yield ""


def _environment(environment: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    hardware = environment.get("hardware", {})
    names = ("python", "torch", "platform", "driver", "cuda")
    versions = [f"{name} {hardware[name]}" for name in names if hardware.get(name)]
    yield escape(", ".join([f"disttest {environment.get('disttest', '')}", *versions]))
    yield escape(f"{hardware.get('cpus', 0)} CPUs, {', '.join(hardware.get('gpus', ())) or 'no GPU'}")
    if run.get("commit"):
        dirty = " with changed files" if run.get("is_dirty") else ""
        branch = f" of {run['branch']}" if run.get("branch") else ""
        yield escape(f"commit {run['commit'][:SHOWN_COMMIT]}{dirty}{branch}")
    yield escape(f"run {run.get('run_id', '')} of {when(float(run.get('started_at_s', 0)))} (UTC)")
    options = " ".join(f"--{name} {value}" for name, value in environment.get("options", {}).items())
    if options:
        yield f"options: {exact_code(options)}"


def _files(packet: Packet) -> Iterator[str]:
    if packet.files:
        yield "### Files"
        yield ""
        yield from (f"- {_file(each)}" for each in packet.files)


def _file(each: LogFile) -> str:
    if not each.path:
        return escape(each.why)
    return f"{code(each.path)} ({size(each.size)}{f', {each.why}' if each.why else ''})"
