"""Blobs, action records, leases and the memory of workspaces; nothing here knows what they mean."""
