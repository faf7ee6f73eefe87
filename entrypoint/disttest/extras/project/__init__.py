"""``disttest init`` and ``disttest config``: set a project up, and show its settings."""
