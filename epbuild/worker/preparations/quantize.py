"""`quantize`: a QDQ model, by onnxruntime.quantization's static quantisation.

The EP's own configuration comes with the request.
What is measured on samples comes from `.npz` files, one sample each, or from samples that are made up where the options ask for that.
`qnn_preprocess_model` is not called: in onnxruntime 1.31.1 it ends with a TypeError as soon as it changes a model.
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
UNFIT = "Calibrate with inputs that the model is made for."
PREPROCESSED = step.SCRATCH + "/preprocessed.onnx"


def quantize(request: dict[str, Any]) -> None:
    """Write the source as a QDQ model. Raises Refused where samples or options do not fit the model."""
    options = dict(request["options"])
    made = options.pop("generate", None)
    source = step.load_header(request)
    samples = Generated(source, made) if made is not None else Files(source, request["files"]["calibration"])
    preprocess(request, {name: options.pop(name) for name in OF_PREPROCESSING if name in options})
    check_names(source, options)
    check_outputs(samples)
    write(request, options, samples)


# -- Samples -----------------------------------------------------------------------------------------------------------


class Samples:
    """Samples one by one, as onnxruntime.quantization asks for them."""

    def __init__(self, count: int) -> None:
        self._count = self._end = count
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Any:
        return iter(self.get_next, None)

    def set_range(self, start_index: int, end_index: int) -> None:
        """From now on the samples from `start_index` to before `end_index`: what is asked of a reader for strides."""
        self._next, self._end = start_index, min(end_index, self._count)

    def get_next(self) -> Any:
        """The next sample, or None after the last."""
        if self._next >= self._end:
            return None
        self._next += 1
        return self.sample(self._next - 1)

    def sample(self, index: int) -> dict[str, Any]:
        """A sample's arrays by the inputs' names."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """What a sample is called in a message."""
        raise NotImplementedError


class Files(Samples):
    """One sample in each `.npz` file, its arrays by the inputs' names."""

    def __init__(self, model: Any, paths: list[str]) -> None:
        super().__init__(len(paths))
        self._paths = paths
        self._inputs = {value.name: value for value in step.required_inputs(model)}
        for index in range(len(paths)):  # all of them, before minutes of work with the first ones
            self.sample(index)
        step.log(f"calibrating with {len(paths)} files")

    def sample(self, index: int) -> dict[str, Any]:
        """The arrays of one file. Raises Refused where they are not what the model takes."""
        import numpy

        path = self._paths[index]
        name = os.path.basename(path)  # noqa: PTH119
        try:
            with numpy.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except Exception as error:
            hint = "Write it by numpy.savez, with an array for each input of the model."
            raise step.Refused(f"the calibration file {name} is no .npz file that can be read: {error}", hint) from error
        hint = f"Its arrays must be the model's inputs: {', '.join(self._inputs)}."
        for key in arrays.keys() - self._inputs.keys():
            raise step.Refused(f"the calibration file {name} has an array '{key}', and the model no such input", hint)
        for key in self._inputs.keys() - arrays.keys():
            raise step.Refused(f"the calibration file {name} lacks the model's input '{key}'", hint)
        for key, array in arrays.items():
            check_array(name, array, self._inputs[key])
        return arrays

    def name(self, index: int) -> str:
        """The file."""
        return f"the calibration file {os.path.basename(self._paths[index])}"  # noqa: PTH119


def check_array(file: str, array: Any, wanted: Any) -> None:
    """Raise Refused where an array of a file is not what an input takes: its type, its sizes, and finite numbers."""
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
        raise step.Refused(f"{where} has the sizes {list(array.shape)}; the model takes [{shown}]")
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise step.Refused(f"{where} holds numbers that are not finite", "Leave this sample out, or mend it.")


class Generated(Samples):
    """Samples drawn evenly from ranges. They show little of what a model meets; the ranges are the recipe's, never guessed."""

    def __init__(self, model: Any, made: dict[str, Any]) -> None:
        super().__init__(made["samples"])
        self._seed = made["seed"]
        self._inputs = step.required_inputs(model)
        self._ranges, self._sizes = made["ranges"], made.get("sizes", {})
        names = [value.name for value in self._inputs]
        for option, given in (("ranges", self._ranges), ("sizes", self._sizes)):
            for name in given:
                if name not in names:
                    raise step.Refused(f"'{option}' names '{name}', which is no input of the model", step.nearest(name, names))
        for value in self._inputs:
            if value.name not in self._ranges:
                hint = f"Add '{value.name}: [LOW, HIGH]' to 'ranges', as the model's real inputs are."
                raise step.Refused(f"there is no range for the input '{value.name}'", hint)
            self._sizes_of(value)
        step.log(f"calibrating with {len(self)} made samples, seed {self._seed}")

    def sample(self, index: int) -> dict[str, Any]:
        """Sample `index`, the same whenever it is asked for."""
        import numpy

        draw = numpy.random.default_rng([self._seed, index])
        return {value.name: self._draw(draw, value) for value in self._inputs}

    def name(self, index: int) -> str:
        """Its number, from 1."""
        return f"made sample {index + 1}"

    def _draw(self, draw: Any, value: Any) -> Any:
        low, high = self._ranges[value.name]
        sizes, dtype = self._sizes_of(value), numpy_type(value)
        if dtype.kind == "f":
            return draw.uniform(low, high, sizes).astype(dtype)
        if dtype.kind == "b":
            return draw.integers(0, 2, sizes).astype(dtype)
        if dtype.kind not in "iu":
            raise step.Refused(f"no samples can be made for the input '{value.name}', which is {dtype}", "Give .npz files.")
        return draw.integers(int(low), int(high), sizes, endpoint=True).astype(dtype)

    def _sizes_of(self, value: Any) -> list[int]:
        own, given = step.sizes_of(value), self._sizes.get(value.name)
        if given is None and (own is None or not all(isinstance(size, int) for size in own)):
            hint = "Fix them by 'input_shapes' of the model, or give those of the samples in 'sizes'."
            shown = "unknown sizes" if own is None else f"the open sizes [{', '.join(map(str, own))}]"
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
    """The numpy type of a tensor."""
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


# -- The libraries -----------------------------------------------------------------------------------------------------


class _Errors(logging.Handler):
    """Keeps what is logged as an error: quant_pre_process goes on without its optimisation where this fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def preprocess(request: dict[str, Any], options: dict[str, Any]) -> None:
    """Write the source as quant_pre_process leaves it: sizes inferred, constants folded, nodes fused. Raises Refused."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    external = step.is_external(request)
    large = {"save_as_external_data": True, "all_tensors_to_one_file": True, "external_data_location": "preprocessed.onnx.data"}
    errors = _Errors()
    logger = logging.getLogger("onnxruntime.quantization.shape_inference")
    logger.addHandler(errors)
    try:
        quant_pre_process(request["source"], PREPROCESSED, **options, **(large if external else {}))
    except Exception as error:
        if "symbolic shape inference" not in str(error):
            raise
        opened = step.open_inputs(step.load_header(request))
        inputs = ", ".join(f"{name} [{', '.join(map(str, sizes or ['?']))}]" for name, sizes in opened.items())
        advice = "set 'skip_symbolic_shape: true'"
        hint = f"Fix the sizes of {inputs} by 'input_shapes' of the model, or {advice}." if opened else f"Else {advice}."
        raise step.Refused(f"onnxruntime's symbolic shape inference does not get through the model: {error}", hint) from error
    finally:
        logger.removeHandler(errors)
    if errors.messages:
        reason = errors.messages[-1].strip().splitlines()[-1]
        hint = "Set 'skip_optimization: true' to quantise it as it is."
        raise step.Refused(f"onnxruntime cannot optimise the model before it is quantised: {reason}", hint)


def check_names(source: Any, options: dict[str, Any]) -> None:
    """Raise Refused where an option names nodes or operators that there are none of: the library would go on in silence."""
    import onnx
    from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

    model = onnx.load(PREPROCESSED, load_external_data=False)
    nodes = {node.name for node in model.graph.node}
    before = {node.name for node in source.graph.node}
    for name in options.get("nodes_to_exclude", ()):
        if name in before and name not in nodes:
            hint = "Set 'skip_optimization: true' to keep all nodes as they are."
            raise step.Refused(f"the node '{name}' is gone once the model is optimised, so that it cannot be kept in float", hint)
        if name not in nodes:
            raise step.Refused(f"'nodes_to_exclude' has '{name}', which is no node of the model", step.nearest(name, nodes))
    there = {node.op_type for node in model.graph.node}
    known = {*there, *IntegerOpsRegistry, *QLinearOpsRegistry, *QDQRegistry}
    for name in options.get("op_types_to_quantize", ()):
        if name not in known:
            raise step.Refused(
                f"'op_types_to_quantize' has '{name}', which is no operator of the model", step.nearest(name, there)
            )


def check_outputs(samples: Samples) -> None:
    """Raise Refused where the model computes NaN of a sample: what is measured leaves such values out in silence."""
    import numpy
    import onnxruntime

    session = onnxruntime.InferenceSession(PREPROCESSED, providers=[step.CPU])
    names = [output.name for output in session.get_outputs()]
    for index in range(len(samples)):
        for name, array in zip(names, session.run(None, samples.sample(index))):  # noqa: B905 - older interpreters
            if isinstance(array, numpy.ndarray) and array.dtype.kind == "f" and numpy.isnan(array).any():
                raise step.Refused(f"with {samples.name(index)}, the model computes NaN in its output '{name}'", UNFIT)


def write(request: dict[str, Any], options: dict[str, Any], samples: Samples) -> None:
    """Write the preprocessed model with what QNN takes quantised. Raises Refused where no sound ranges come of the samples."""
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
        message = (
            f"onnxruntime.quantization does not get through the model with what it measured: {error or 'an assertion fails'}"
        )
        raise step.Refused(
            message, f"{UNFIT} Values that are not finite, or as large as float32 holds, have no scale."
        ) from error
    check_scales({**request, "source": result}, request)


def check_scales(quantized: dict[str, Any], request: dict[str, Any]) -> None:
    """Write the quantised model, unless it has scales that mean nothing: those of values that were not finite."""
    import numpy
    import onnx

    model = step.load_model(quantized)
    quantizing = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    if not quantizing:
        raise step.Refused("nothing of the model was quantised", "Check 'op_types_to_quantize' and 'nodes_to_exclude'.")
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
