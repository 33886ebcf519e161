"""Measures the pause of an engine for a commit, against a bare scatter, vLLM's sparse loader and a reload."""
