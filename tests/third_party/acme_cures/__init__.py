"""Cures of somebody else's."""
