"""The version: one line, read by the build and by the user agent."""

__version__ = "0.1.0.dev0"
