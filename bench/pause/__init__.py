"""How long an engine stands still for a commit, beside what else could be done in its place."""
