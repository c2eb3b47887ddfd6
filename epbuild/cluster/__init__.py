"""Execution on other machines: requests, offers, and Dask as the transport."""
