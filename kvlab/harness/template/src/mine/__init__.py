"""A KV-cache allocation strategy for kvlab."""
