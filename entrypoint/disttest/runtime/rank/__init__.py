"""A rank: runs tests when its world says so. An island: it knows nothing of the processes above it."""
