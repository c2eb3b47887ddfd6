"""Provision, probe and fingerprint the Python environments that hold one ONNX Runtime and its EPs."""

from epbuild.toolchain.environment import Environment, prepare, ready
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.provision import Requirements, provision

__all__ = ["Environment", "Fingerprint", "Requirements", "prepare", "provision", "ready"]
