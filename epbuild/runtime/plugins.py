"""Plugin EPs as an application meets them.

The catalog has this too, and is not imported here: an application has this package and onnxruntime alone. A test holds the packages
against the catalog.
"""

from __future__ import annotations

PLUGINS = {
    "onnxruntime-qnn": ("QNNExecutionProvider", "onnxruntime_qnn"),
    "onnxruntime-ep-openvino": ("OpenVINOExecutionProvider", "onnxruntime_ep_openvino"),
    "onnxruntime-ep-nv-tensorrt-rtx": ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx"),
    "onnxruntime-ep-nv-tensorrt-rtx-cu12": ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx"),
    "onnxruntime-ep-nv-tensorrt-rtx-cu13": ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx"),
    "onnxruntime-ep-webgpu": ("WebGpuExecutionProvider", "onnxruntime_ep_webgpu"),
}
"""The packages that ship plugin EPs: the EP, and the module that knows the library; for manifests that do not name the module."""

SHARED_NOT_ON_CPU = {
    # Measured with 2.7.0 on x86-64: the emulator ends the process with a segmentation fault.
    "QNNExecutionProvider": "need a Snapdragon: on other machines QNN crashes when it loads them",
}
"""EPs that load models which share weights on no CPU device, and why: the end of a sentence about these models."""

JUDGE_NPUS_ONLY = frozenset({"QNNExecutionProvider"})
"""EPs that are asked about compiled models for an NPU alone: of anything else, QNN 2.7.0 knows nothing, and sometimes crashes."""
