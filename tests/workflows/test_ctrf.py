"""ctrf.json is a document that the format's own schema accepts."""

import json
from pathlib import Path

import jsonschema
import pytest
from sample_runs import SampleRun, mixed_run

from disttest.plugins.ctrf.report import ctrf_pieces

SCHEMA = Path(__file__).parent / "node_modules" / "ctrf" / "dist" / "ctrf-schema-0.0.json"


@pytest.mark.parametrize("run", [mixed_run(), SampleRun().finish()], ids=["one of everything", "nothing"])
def test_its_schema_accepts_it(run):
    jsonschema.validate(json.loads(b"".join(ctrf_pieces(run))), json.loads(SCHEMA.read_text()))
