"""The version, alone here so that nothing else need be imported for it."""

__version__ = "0.1.0"
