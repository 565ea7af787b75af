"""Grants: devices, the prediction of memory, and the lease."""
