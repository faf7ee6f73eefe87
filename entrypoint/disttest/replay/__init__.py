"""What one rank of a test received, kept in a file, and given back to it when it runs alone."""
