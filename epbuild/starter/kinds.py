"""What a first recipe for an EP needs to hold: packages that are known to work together, and the option that names its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """One kind of first recipe. `target_option` is the option whose value makes one target differ from another."""

    ep: str
    packages: tuple[str, ...]
    target_option: str
    target_words: str
    example: str
    options: Mapping[str, str] = field(default_factory=dict)


KINDS: Mapping[str, Kind] = {
    "qnn": Kind(
        ep="QNNExecutionProvider",
        packages=("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"),
        target_option="soc_model",
        target_words="the SoC, by chip name or number",
        example="SM8750",
        options={"backend_type": "htp"},
    ),
    "openvino": Kind(
        ep="OpenVINOExecutionProvider",
        packages=("onnxruntime-openvino==1.24.1",),
        target_option="device_type",
        target_words="the device, such as CPU, GPU or NPU",
        example="CPU",
    ),
}
