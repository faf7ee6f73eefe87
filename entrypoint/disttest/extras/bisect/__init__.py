"""`disttest bisect`: finds the first commit at which a test fails, also if it fails only now and then."""
