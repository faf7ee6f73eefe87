"""Annotations: failures and warnings next to the code in the pages of GitHub."""
