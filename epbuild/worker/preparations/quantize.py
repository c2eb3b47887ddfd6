"""`quantize`: conversion to a QDQ model, by onnxruntime.quantization.

The request names the EP's own function that configures the quantization. Samples are `.npz` files, one sample each, or are generated
if the options say so.
`qnn_preprocess_model` is not called: in onnxruntime 1.31.1 it raises a TypeError as soon as it changes a model.
"""

from __future__ import annotations

import importlib
import logging
import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

OF_PREPROCESSING = ("skip_optimization", "skip_onnx_shape", "skip_symbolic_shape", "auto_merge")
TYPES = {
    "uint8": "QUInt8", "int8": "QInt8", "uint16": "QUInt16", "int16": "QInt16", "uint4": "QUInt4", "int4": "QInt4",
}  # fmt: skip
WIDE_OPSET = 21
"""First operator set in which QuantizeLinear has 16-bit types."""
UNFIT = "Calibrate with inputs that are typical for the model."
PREPROCESSED = step.SCRATCH + "/preprocessed.onnx"


def quantize(request: dict[str, Any]) -> None:
    """Write the source as a QDQ model. Raises Refused if samples or options do not fit the model."""
    options = dict(request["options"])
    made = options.pop("generate", None)
    source = step.load_header(request)
    samples = Generated(source, made) if made is not None else Files(source, request["files"]["calibration"])
    check_size(source, request, options)
    preprocess(request, {name: options.pop(name) for name in OF_PREPROCESSING if name in options})
    check_names(source, options)
    if options.pop("float_norms", True):
        options["nodes_to_exclude"] = [*options.get("nodes_to_exclude", ()), *name_norms()]
    check_outputs(samples)
    write(request, options, samples)


# -- Samples -----------------------------------------------------------------------------------------------------------


class Samples:
    """Reader of samples, one at a time, with the interface that onnxruntime.quantization expects."""

    def __init__(self, count: int) -> None:
        self._count = self._end = count
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Any:
        return iter(self.get_next, None)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Continue with the samples from `start_index` to before `end_index`. onnxruntime calls this to calibrate in strides."""
        self._next, self._end = start_index, min(end_index, self._count)

    def get_next(self) -> Any:
        """Return the next sample, or None after the last."""
        if self._next >= self._end:
            return None
        self._next += 1
        step.log(f"calibrating with {self.name(self._next - 1)}, {self._next} of {self._count}")
        return self.sample(self._next - 1)

    def sample(self, index: int) -> dict[str, Any]:
        """Return the arrays of a sample by the names of the inputs."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return the name of a sample for messages."""
        raise NotImplementedError


class Files(Samples):
    """Samples in `.npz` files: one sample per file, with its arrays by the names of the inputs."""

    def __init__(self, model: Any, paths: list[str]) -> None:
        super().__init__(len(paths))
        self._paths = paths
        self._inputs = {value.name: value for value in step.required_inputs(model)}
        for index in range(len(paths)):  # check all of them before minutes of work
            self.sample(index)
        step.log(f"calibrating with {len(paths)} files")

    def sample(self, index: int) -> dict[str, Any]:
        """Return the arrays of one file. Raises Refused if they do not fit the inputs of the model."""
        import numpy

        path = self._paths[index]
        name = os.path.basename(path)  # noqa: PTH119
        try:
            with numpy.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except Exception as error:
            hint = "Write it with numpy.savez, with an array for each input of the model."
            raise step.Refused(f"the calibration file {name} is not a readable .npz file: {error}", hint) from error
        hint = f"Its arrays must be the model's inputs: {', '.join(self._inputs)}."
        for key in arrays.keys() - self._inputs.keys():
            raise step.Refused(f"the calibration file {name} has an array '{key}', which is not an input of the model", hint)
        for key in self._inputs.keys() - arrays.keys():
            raise step.Refused(f"the calibration file {name} lacks the model's input '{key}'", hint)
        for key, array in arrays.items():
            check_array(name, array, self._inputs[key])
        return arrays

    def name(self, index: int) -> str:
        """Return the name of the file, for messages."""
        return f"the calibration file {os.path.basename(self._paths[index])}"  # noqa: PTH119


def check_array(file: str, array: Any, wanted: Any) -> None:
    """Raise Refused if an array of a file does not have the type and sizes of an input, or has numbers that are not finite."""
    import numpy

    dtype = numpy_type(wanted)
    where = f"in the calibration file {file}, the array '{wanted.name}'"
    if array.dtype != dtype:
        raise step.Refused(f"{where} is {array.dtype}; the model takes {dtype}", f"Save it as {dtype}: array.astype('{dtype}').")
    sizes = step.sizes_of(wanted)
    fits = sizes is None or (
        len(sizes) == array.ndim and all(not isinstance(size, int) or size == has for size, has in zip(sizes, array.shape))  # noqa: B905 - older interpreters
    )
    if not fits:
        shown = ", ".join(map(str, sizes or ()))
        raise step.Refused(f"{where} has the shape {list(array.shape)}; the model expects [{shown}]")
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise step.Refused(f"{where} contains values that are not finite", "Remove or correct this sample.")


class Generated(Samples):
    """Samples with a uniform distribution over the ranges in the recipe. They represent real inputs poorly."""

    def __init__(self, model: Any, made: dict[str, Any]) -> None:
        super().__init__(made["samples"])
        self._seed = made["seed"]
        self._inputs = step.required_inputs(model)
        self._ranges, self._sizes = made["ranges"], made.get("sizes", {})
        names = [value.name for value in self._inputs]
        for option, given in (("ranges", self._ranges), ("sizes", self._sizes)):
            for name in given:
                if name not in names:
                    raise step.Refused(
                        f"'{option}' names '{name}', which is not an input of the model", step.nearest(name, names)
                    )
        for value in self._inputs:
            if value.name not in self._ranges:
                hint = f"Add '{value.name}: [LOW, HIGH]' to 'ranges', with the range of the model's real inputs."
                raise step.Refused(f"there is no range for the input '{value.name}'", hint)
            self._sizes_of(value)
        step.log(f"calibrating with {len(self)} generated samples, seed {self._seed}")

    def sample(self, index: int) -> dict[str, Any]:
        """Return the sample at `index`. Each call returns the same values."""
        import numpy

        draw = numpy.random.default_rng([self._seed, index])
        return {value.name: self._draw(draw, value) for value in self._inputs}

    def name(self, index: int) -> str:
        """Return the number of the sample, from 1, for messages."""
        return f"generated sample {index + 1}"

    def _draw(self, draw: Any, value: Any) -> Any:
        low, high = self._ranges[value.name]
        sizes, dtype = self._sizes_of(value), numpy_type(value)
        if dtype.kind == "f":
            return draw.uniform(low, high, sizes).astype(dtype)
        if dtype.kind == "b":
            return draw.integers(0, 2, sizes).astype(dtype)
        if dtype.kind not in "iu":
            raise step.Refused(
                f"no samples can be generated for the input '{value.name}', which is {dtype}", "Provide .npz files."
            )
        return draw.integers(int(low), int(high), sizes, endpoint=True).astype(dtype)

    def _sizes_of(self, value: Any) -> list[int]:
        own, given = step.sizes_of(value), self._sizes.get(value.name)
        if given is None and (own is None or not all(isinstance(size, int) for size in own)):
            hint = "Fix the sizes with 'input_shapes' of the model, or set the sizes of the samples in 'sizes'."
            shown = "unknown sizes" if own is None else f"the dynamic sizes [{', '.join(map(str, own))}]"
            raise step.Refused(f"the input '{value.name}' has {shown}", hint)
        if given is None:
            return own  # type: ignore[no-any-return]
        if own is not None and (
            len(own) != len(given) or any(isinstance(size, int) and size != has for size, has in zip(own, given))  # noqa: B905
        ):
            shown = ", ".join(map(str, own))
            raise step.Refused(f"'sizes' of '{value.name}' are {list(given)}; the model takes [{shown}]")
        return list(given)


def numpy_type(value: Any) -> Any:
    """Return the numpy type of a tensor."""
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def check_size(source: Any, request: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise Refused for a model that onnxruntime would convert to a newer operator set, but that is too large for the converter."""
    wide = [name for name in ("activation_type", "weight_type") if "16" in options.get(name, "")]
    versions = [opset.version for opset in source.opset_import if opset.domain in ("", "ai.onnx")]
    folder = os.path.dirname(request["source"])  # noqa: PTH120
    size = sum(step.locate(tensor, folder)[2] for tensor in step.list_external(source))
    if wide and min(versions, default=WIDE_OPSET) < WIDE_OPSET and size > step.MAX_INLINE_BYTES:
        message = f"16-bit quantization needs operator set {WIDE_OPSET}, and the model is too large for ONNX's converter"
        raise step.Refused(message, f"Export the model with operator set {WIDE_OPSET} or later, or quantize to 8 bits.")


# -- The libraries -----------------------------------------------------------------------------------------------------


class _Errors(logging.Handler):
    """Handler that keeps logged errors, because `quant_pre_process` only logs an error if its optimization fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def preprocess(request: dict[str, Any], options: dict[str, Any]) -> None:
    """Run `quant_pre_process`, which infers sizes, folds constants and fuses nodes. Raises Refused if the optimization fails."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    external = step.is_external(request)
    large = {"save_as_external_data": True, "all_tensors_to_one_file": True, "external_data_location": "preprocessed.onnx.data"}
    errors = _Errors()
    logger = logging.getLogger("onnxruntime.quantization.shape_inference")
    logger.addHandler(errors)
    step.log("inferring shapes and optimizing the graph before calibration")
    try:
        quant_pre_process(request["source"], PREPROCESSED, **options, **(large if external else {}))
    except Exception as error:
        if options.get("skip_symbolic_shape"):
            raise
        # The inference raises errors of any type, such as TypeError for a ReduceMean whose axes are an input.
        step.log(f"onnxruntime's symbolic shape inference failed, so quantization continues without it: {error}")
        errors.messages.clear()
        quant_pre_process(
            request["source"], PREPROCESSED, **{**options, "skip_symbolic_shape": True}, **(large if external else {})
        )
    finally:
        logger.removeHandler(errors)
    if errors.messages:
        reason = errors.messages[-1].strip().splitlines()[-1]
        hint = "Set 'skip_optimization: true' to quantize the model as it is."
        raise step.Refused(f"onnxruntime cannot optimize the model before quantization: {reason}", hint)


def check_names(source: Any, options: dict[str, Any]) -> None:
    """Raise Refused if an option names nodes or operators that do not exist, which the library ignores silently."""
    import onnx
    from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

    model = onnx.load(PREPROCESSED, load_external_data=False)
    nodes = {node.name for node in model.graph.node}
    before = {node.name for node in source.graph.node}
    for name in options.get("nodes_to_exclude", ()):
        if name in before and name not in nodes:
            hint = "Set 'skip_optimization: true' to keep all nodes as they are."
            raise step.Refused(f"the node '{name}' is removed when the model is optimized, so it cannot stay in float", hint)
        if name not in nodes:
            raise step.Refused(f"'nodes_to_exclude' has '{name}', which is not a node of the model", step.nearest(name, nodes))
    there = {node.op_type for node in model.graph.node}
    known = {*there, *IntegerOpsRegistry, *QLinearOpsRegistry, *QDQRegistry}
    for name in options.get("op_types_to_quantize", ()):
        if name not in known:
            raise step.Refused(
                f"'op_types_to_quantize' has '{name}', which is not an operator of the model", step.nearest(name, there)
            )


def name_norms() -> list[str]:
    """Return the names of the nodes of every RMSNorm in the preprocessed model. Nodes without a name get one.

    The nodes end with the division. QNN computes noise if they are quantized; see "Quantized RMSNorm" in docs/internals/facts.md.
    """
    import onnx

    model = onnx.load(PREPROCESSED, load_external_data=False)
    norms = list(find_norms(model.graph))
    unnamed = [node for nodes in norms for node in nodes if not node.name]
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(unnamed):
        node.name = f"rms_norm_{number}"
        if node.name in taken:
            raise step.Refused(
                f"the model already has a node named '{node.name}', a name that quantization needs",
                "Rename this node, or set 'float_norms: false'.",
            )
    if unnamed:
        onnx.save(model, PREPROCESSED)  # external data keeps its files
    if norms:
        step.log(f"RMSNorms that stay in float: {len(norms)}")
    return [node.name for nodes in norms for node in nodes]


def find_norms(graph: Any) -> Any:
    """Yield the nodes of each RMSNorm: square, mean, sum with epsilon, square root, and division by the root (or product with its inverse).

    LayerNorm, which squares a difference, is left out: QNN computes a quantized LayerNorm correctly.
    """
    makers = {name: node for node in graph.node for name in node.output if name}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def reader(node: Any, *operators: str) -> Any:
        return next((found for found in readers.get(node.output[0], ()) if found.op_type in operators), None)

    for mean in graph.node:
        square = makers.get(mean.input[0]) if mean.op_type == "ReduceMean" else None
        if square is None or not (square.op_type == "Pow" or (square.op_type == "Mul" and square.input[0] == square.input[1])):
            continue
        centered = makers.get(square.input[0])
        if centered is not None and centered.op_type == "Sub":
            continue
        total = reader(mean, "Add")
        root = total and reader(total, "Sqrt")
        divided = root and reader(root, "Reciprocal", "Div")
        nodes = [square, mean, total, root, divided]
        if divided and divided.op_type == "Reciprocal":
            nodes.append(reader(divided, "Mul"))
        if all(nodes) and square.input[0] in nodes[-1].input:
            yield nodes


def check_outputs(samples: Samples) -> None:
    """Raise Refused if the model computes NaN for a sample. The library ignores such values silently."""
    import numpy
    import onnxruntime

    session = onnxruntime.InferenceSession(PREPROCESSED, providers=[step.CPU])
    names = [output.name for output in session.get_outputs()]
    for index in range(len(samples)):
        step.log(f"running the model with {samples.name(index)}, {index + 1} of {len(samples)}")
        for name, array in zip(names, session.run(None, samples.sample(index))):  # noqa: B905 - older interpreters
            if isinstance(array, numpy.ndarray) and array.dtype.kind == "f" and numpy.isnan(array).any():
                raise step.Refused(f"with {samples.name(index)}, the model computes NaN in its output '{name}'", UNFIT)


def write(request: dict[str, Any], options: dict[str, Any], samples: Samples) -> None:
    """Quantize the preprocessed model as the EP's configuration says, and write it. Raises Refused if samples give no usable ranges."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType
    from onnxruntime.quantization import quantize as quantize_model

    CalibrationDataReader.register(type(samples))
    for name in ("activation_type", "weight_type"):
        if name in options:
            options[name] = QuantType[TYPES[options[name]]]
    if "calibrate_method" in options:
        options["calibrate_method"] = CalibrationMethod[options["calibrate_method"]]
    module, _, function = request["settings"]["configuration"].partition(":")
    config = getattr(importlib.import_module(module), function)(PREPROCESSED, samples, **options)
    config.op_types_to_quantize = sorted(config.op_types_to_quantize)
    result = step.SCRATCH + "/quantized.onnx"
    try:
        quantize_model(PREPROCESSED, result, config)
    except AssertionError as error:
        message = f"onnxruntime.quantization failed with the ranges that it measured: {error or 'an assertion fails'}"
        raise step.Refused(message, f"{UNFIT} Values that are not finite, or at the limit of float32, have no scale.") from error
    check_scales({**request, "source": result}, request)


def check_scales(quantized: dict[str, Any], request: dict[str, Any]) -> None:
    """Write the quantized model. Raises Refused if nothing was quantized, or if a scale is not finite."""
    import numpy
    import onnx

    step.log("writing the quantized model")
    model = step.load_model(quantized)
    quantizing = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    if not quantizing:
        raise step.Refused("nothing in the model was quantized", "Check 'op_types_to_quantize' and 'nodes_to_exclude'.")
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in quantizing:
        if node.input[1] in values and not numpy.isfinite(onnx.numpy_helper.to_array(values[node.input[1]])).all():
            raise step.Refused(f"with these samples, the value '{node.input[0]}' is not finite", UNFIT)
    step.log(
        f"{step.node_count(step.load_header(request))} became {step.node_count(model)}, {len(quantizing)} of them QuantizeLinear"
    )
    step.save(model, request)


if __name__ == "__main__":
    step.main(quantize)
