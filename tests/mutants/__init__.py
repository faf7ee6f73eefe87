"""Faults planted in torch's distributed layer, one at a time, which the bundled suites must catch."""
