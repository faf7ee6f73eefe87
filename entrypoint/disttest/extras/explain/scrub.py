"""Hides secrets in the texts of a packet, which leaves the machine. A run hides what ``--mask`` names; this is a second net."""

from __future__ import annotations

import re

from disttest.outgoing import outgoing

HIDDEN = "***"
_KNOWN = (
    r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
"""Tokens of GitHub, GitLab, Hugging Face, OpenAI, Slack and AWS; JSON web tokens; private keys."""
_TOKEN = re.compile("|".join(_KNOWN), re.DOTALL)
_URL = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?i)(?<=\bauthorization: )(bearer|basic|token) \S+")
# Tests of models are full of numbers of tokens: only the token of something, or a variable in capitals, is a secret.
_NAMES = (
    r"(?i:passw(?:or)?d|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|(?:auth|access|api|refresh|session|bearer)[_-]?token)|[A-Z0-9_]*TOKEN(?![A-Z])"
)
# A node id (``test_secret.py::test_x``) and a line of a file (``test_secret.py:1234:``) are no values.
_NAMED = re.compile(
    rf"(\b[\w.-]*(?:{_NAMES})[\w.-]*[\"']?\s*[=:](?!:)\s*[\"']?)(?!\d+(?:\W|$))([^\s\"',;&]{{4,}})"
)
"""A value behind a name that says that it is secret: ``API_KEY=…``, ``"password": "…"``."""


def scrub(text: str) -> str:
    """Hide the values that the run hides, and all that looks like a secret."""
    text = _TOKEN.sub(HIDDEN, outgoing.text(text))
    text = _NAMED.sub(rf"\1{HIDDEN}", _BEARER.sub(rf"\1 {HIDDEN}", text))
    return _URL.sub(HIDDEN, text)
