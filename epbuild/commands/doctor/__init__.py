"""Health of this machine: whether builds can work here, and what to mend."""
