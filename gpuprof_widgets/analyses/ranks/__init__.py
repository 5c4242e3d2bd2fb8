"""Many ranks of one run: each is reduced to a few tables, and these are compared."""
