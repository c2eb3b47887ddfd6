"""All that is known of EPs, session keys and preparations, as data."""
