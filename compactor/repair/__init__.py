"""Repair: finds out what is damaged, rebuilds what entries prove, and names what is lost."""
