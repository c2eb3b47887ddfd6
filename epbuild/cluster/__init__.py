"""Other machines: requests, what they offer, and Dask between them."""
