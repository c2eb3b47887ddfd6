"""Properties of plugin EPs, for use in applications.

The catalog has the same data, but cannot be imported here, because an application has only this package and onnxruntime. A test
compares both.
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
"""EP and Python module of each plugin package, for manifests that do not name the module.

The function `get_library_path` of the module returns the path of the EP's library.
"""

SDK_ATTRIBUTES = {"QNNExecutionProvider": "build_and_package_info.qnn_version"}
"""Attribute of the EP's Python module with the version of its SDK, by EP."""

SHARED_NOT_ON_CPU = {
    # Measured with 2.7.0 on x86-64: the emulator ends the process with a segmentation fault.
    "QNNExecutionProvider": "need a Snapdragon: on other machines QNN crashes when it loads them",
}
"""EPs that cannot load models with shared weights on a CPU device, with the reason.

The reason completes a sentence whose subject is the models.
"""

JUDGE_NPUS_ONLY = frozenset({"QNNExecutionProvider"})
"""EPs that return a verdict on compiled models only if the device is an NPU.

For other devices, QNN 2.7.0 has no verdict and sometimes crashes.
"""
