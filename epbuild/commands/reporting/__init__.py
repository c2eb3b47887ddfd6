"""Reports: results of a recipe's builds, and changes since other builds."""
