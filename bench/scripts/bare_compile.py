"""`python bare_compile.py SOURCE OUTPUT SOC`, in the toolchain: a compile as users write it by hand, for comparison."""

from __future__ import annotations

import os
import sys

import onnxruntime
import onnxruntime_qnn  # it is in the toolchain only

EP = "QNNExecutionProvider"


def main(source: str, output: str, soc: str) -> None:
    onnxruntime.register_execution_provider_library(EP, onnxruntime_qnn.get_library_path())
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == EP)
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device], {"backend_type": "htp", "soc_model": soc})
    compiler = onnxruntime.ModelCompiler(
        options,
        source,
        embed_compiled_data_into_model=False,
        flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    )
    compiler.compile_to_file(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # exit as epbuild's worker does
