"""kvlab: the lab bench for KV-cache memory management."""

__version__ = "0.1.0"
