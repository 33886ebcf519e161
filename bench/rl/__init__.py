"""`p2psync bench rl`: the same reinforcement-learning loop with three ways to bring a policy to its actors."""
