"""Runs cells for a host outside: see bridge.py."""
