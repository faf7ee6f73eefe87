"""torch's own suites under torch's own harness and under ours: the same verdicts, or a reason."""
