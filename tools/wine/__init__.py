"""Windows Python under wine, made from the packages of Debian and PyPI, and epbuild's tests in it."""
