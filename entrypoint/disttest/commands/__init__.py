"""Commands of their own: what they need of the layers below is given to them, so that tests can give something else."""
