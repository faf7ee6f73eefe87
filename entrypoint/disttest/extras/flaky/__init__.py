"""Flaky tests: a quarantine whose failures do not fail a run until a date, and `disttest flaky`, which finds their cause.

``quarantine`` reads `flaky.toml`; ``judging`` keeps a failure from failing the run; ``tables`` shows it; ``audit`` finds entries
that can go. ``measure`` runs a test under perturbations; ``causes`` names the cause. Uses the history,
``disttest.extras.history``, and runs tests as ``disttest.extras.bisect`` does.
"""
