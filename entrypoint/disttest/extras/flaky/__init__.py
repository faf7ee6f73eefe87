"""Flaky tests: `flaky.toml` lists tests in quarantine, whose failures do not fail a run until a date; `disttest flaky audit`.

``quarantine`` reads the file; ``judging`` keeps a failure from failing the run; ``tables`` shows it; ``audit`` finds entries that
can go. Uses the history, ``disttest.extras.history``.
"""
