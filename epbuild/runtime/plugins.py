"""Facts on plugin EPs that applications need.

The catalog has them too, but cannot be imported here: an application has only this package and onnxruntime. A test compares both.
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
"""Packages that ship plugin EPs, with the EP and the module that has the path of the library. For manifests without a module."""

SHARED_NOT_ON_CPU = {
    # Measured with 2.7.0 on x86-64: the emulator ends the process with a segmentation fault.
    "QNNExecutionProvider": "need a Snapdragon: on other machines QNN crashes when it loads them",
}
"""EPs that cannot load models with shared weights on a CPU device. The reason is the end of a sentence about these models."""

JUDGE_NPUS_ONLY = frozenset({"QNNExecutionProvider"})
"""EPs that judge compiled models only for an NPU. For other devices QNN 2.7.0 has no verdict, and sometimes crashes."""
