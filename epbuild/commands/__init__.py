"""What each command does; the one room that ties others together."""
