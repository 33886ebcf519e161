"""Measures a node's paths and controls its connections, from TCP counters. Sans-I/O."""
