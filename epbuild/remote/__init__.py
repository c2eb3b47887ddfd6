"""Remote cache: signed records and blobs on a server or in a directory.

Only a `RecordKind` knows the meaning of a record.
"""
