"""``disttest doctor``: says what a machine has, proves that it works, and what to do where it does not."""
