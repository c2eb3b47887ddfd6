"""Transfer of files and objects over HTTP, and in buckets and folders."""
