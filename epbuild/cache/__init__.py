"""The cache: blobs, action records, leases and workspace memory.

Nothing here knows what they mean.
"""
