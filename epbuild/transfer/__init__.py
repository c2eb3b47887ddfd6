"""Transfer of files and objects over HTTP, and to and from buckets and folders."""
