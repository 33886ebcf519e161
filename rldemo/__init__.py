"""The reinforcement-learning side of `p2psync demo`: a small policy, a verifiable task, and GRPO.

Nothing here knows of networks or deltas. A trainer process owns a `Learner`, actor processes call `roll_out`, and
whoever runs them moves `RolloutTask` and `RolloutResult` between the two.
"""
