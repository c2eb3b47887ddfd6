"""Knowledge about EPs, session keys and preparations, as data."""
