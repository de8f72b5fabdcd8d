"""Helpers that several test files share; tests import nothing else of each other."""
