"""The remote cache: signed records and blobs on a server or in a directory.

Nothing here knows what a record means: a `RecordKind` does.
"""
