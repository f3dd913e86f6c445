"""Adapters: the only modules that import a host."""
