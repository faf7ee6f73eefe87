"""The table of sanitizers: a row for each name of :data:`disttest.sanitizers.choice.NAMES`."""

from __future__ import annotations

from disttest.sanitizers.order.judge import judge_reports
from disttest.sanitizers.order.recorder import OrderRecorder
from disttest.sanitizers.sanitizer import Sanitizer

SANITIZERS = {"order": Sanitizer(make_recorder=OrderRecorder, judge=judge_reports)}
