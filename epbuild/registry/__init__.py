"""Images into registries, by the OCI distribution specification: what is there already is not sent again. Nothing else here speaks HTTP."""

from epbuild.registry.client import Pushed, push
from epbuild.registry.exchange import PushCancelled

__all__ = ["PushCancelled", "Pushed", "push"]
