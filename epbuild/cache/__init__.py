"""The cache: blobs, action records, leases and workspace memory.

This package does not interpret their content.
"""
