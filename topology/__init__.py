"""Networks as p2psync sees them: who can send how fast to whom, and what that allows at best."""
