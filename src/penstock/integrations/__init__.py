"""Penstock inside other frameworks, one file for each. None is imported before it is asked for."""
