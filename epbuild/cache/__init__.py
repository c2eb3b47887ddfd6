"""The cache: blobs, action records, leases and workspace memory.

The room does not interpret their content.
"""
