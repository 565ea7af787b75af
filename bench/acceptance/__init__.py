"""The sections of `gpu_acceptance.py`, and the workbench that they share."""
