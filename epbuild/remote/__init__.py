"""Remote cache: signed records and blobs on a server or in a directory.

This package does not interpret records, except through a `RecordKind`.
"""
