"""Two artifacts, compared in sizes, facts and bytes."""
