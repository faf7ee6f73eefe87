"""Expressions of workflows and actions, evaluated by GitHub's own package in one process for all tests."""

from __future__ import annotations

import atexit
import functools
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EVALUATE = Path(__file__).resolve().parents[1] / "workflows" / "evaluate.mjs"
STATUS = re.compile(r"\b(success|failure|cancelled|always)\(\)")
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


@functools.cache
def evaluator() -> subprocess.Popen[str]:
    """The process: started when it is first asked for, it lives as long as this one."""
    if not (EVALUATE.parent / "node_modules" / "@actions").exists():
        raise RuntimeError("GitHub's packages are missing: run `make tests/workflows/node_modules/.ready`")
    process = subprocess.Popen(
        ["node", str(EVALUATE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.kill)
    return process


def evaluate(expression: str, contexts: Mapping[str, Any], *, status: str = "success") -> Any:
    """The value of an expression; ``status`` is that of the job so far: success, failure or cancelled.

    Raises:
        ValueError: it is none, or names a context that is not given.
    """
    process = evaluator()
    assert process.stdin is not None
    assert process.stdout is not None
    functions = {name: name == status for name in ("success", "failure", "cancelled")} | {"always": True}
    asked = {"expression": expression, "contexts": contexts, "functions": functions}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "error" in answer:
        raise ValueError(f"{expression}: {answer['error']}")
    return answer.get("value")


def expand(value: Any, contexts: Mapping[str, Any]) -> Any:
    """A value of a workflow with its expressions replaced, once: what a value contains is not looked at again.

    Text that is one expression keeps the type of its value; lists and mappings are expanded piece by piece.
    """
    if isinstance(value, Mapping):
        return {name: expand(one, contexts) for name, one in value.items()}
    if isinstance(value, list):
        return [expand(one, contexts) for one in value]
    if not isinstance(value, str):
        return value
    if (whole := _alone(value)) is not None:
        return evaluate(whole, contexts)
    return EXPRESSION.sub(lambda match: as_text(evaluate(match[1].strip(), contexts)), value)


def expand_text(value: Any, contexts: Mapping[str, Any]) -> str:
    """The same as text, as inputs and variables get it."""
    return as_text(expand(value, contexts))


def as_text(value: Any) -> str:
    """A value as GitHub writes it into text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def holds(condition: Any, contexts: Mapping[str, Any], *, status: str) -> bool:
    """Whether an ``if`` is true; without a status function in it, ``success()`` is asked for, too."""
    text = as_text(condition).strip()
    text = _alone(text) or text
    if not STATUS.search(text):
        text = f"success() && ({text})" if text else "success()"
    return bool(evaluate(text, contexts, status=status))


def _alone(text: str) -> str | None:
    """The expression that a text consists of; None: it has more in it."""
    found = EXPRESSION.match(text.strip())
    return found[1].strip() if found and found[0] == text.strip() else None
