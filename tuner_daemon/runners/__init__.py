"""Runners: check and time candidates in a worker process, or answer from a recorded space."""
