"""Pure decisions: options, timings, plans, slots. No code here uses a process or a pytest object."""
