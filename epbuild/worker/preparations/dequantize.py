"""`dequantize`: replacement of dynamically quantized nodes by float32 nodes.

Such nodes compute the scales of their inputs at run time, but the scales of their weights are constants:

    DynamicQuantizeLinear -> MatMulInteger or ConvInteger -> Cast -> Mul by the scales    becomes MatMul or Conv
    DynamicQuantizeLSTM                                                                 becomes LSTM
    DynamicQuantizeMatMul, or MatMulIntegerToFloat                                      becomes MatMul, and Add for a bias
    quantized table -> Gather -> DequantizeLinear                                       becomes Gather from a table of floats
"""

from __future__ import annotations

import hashlib
import os
import runpy
from collections import Counter
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

MOVING = ("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""Operators that only move the elements of their first input, so they also work on floats."""
FLOAT = 1


class KeepError(Exception):
    """Reason why a node stays quantized, as a clause."""


def dequantize(request: dict[str, Any]) -> None:
    """Write the source with float32 nodes instead of dynamically quantized ones. Raises Refused if no node can be replaced."""
    model = step.load_model(request)
    names = Names(model.graph)
    scopes = list(open_scopes(model.graph, names, None))
    done: Counter[str] = Counter()
    kept: Counter[tuple[str, str]] = Counter()
    for scope in reversed(scopes):  # subgraphs first, because each change of a graph copies the subgraphs in its nodes
        scope.replace_nodes(done, kept)
        scope.remove_unused(names.released)
    reasons = [f"{count} {operator}: {reason}" for (operator, reason), count in kept.most_common()]
    if not done and not kept:
        raise step.Refused("the model has no dynamically quantized nodes", step.REMOVE_HINT)
    if not done:
        message = f"none of the {sum(kept.values())} dynamically quantized nodes can be replaced: {'; '.join(reasons)}"
        raise step.Refused(message, f"{step.REMOVE_HINT} Export the float model instead.")
    for reason in reasons:
        step.log(f"still quantized: {reason}")
    step.log(f"replaced by float32: {', '.join(f'{count} {operator}' for operator, count in sorted(done.items()))}")
    step.save(model, request)


class Names:
    """Names of all values and nodes of a model. New names differ from them."""

    def __init__(self, graph: Any) -> None:
        self.known: set[str] = set()
        self.released: set[str] = set()
        """Values that removed nodes read, which may have become unused."""
        for inner in step.list_graphs(graph):
            self.known.update(value.name for value in (*inner.input, *inner.initializer))
            self.known.update(name for node in inner.node for name in (node.name, *node.output))

    def make(self, base: str) -> str:
        """Return a new name that begins with `base`."""
        name, number = base, 2
        while name in self.known:
            name, number = f"{base}_{number}", number + 1
        self.known.add(name)
        return name


def open_scopes(graph: Any, names: Names, outer: Scope | None) -> Any:
    """Yield the scope of a graph, and then those of the graphs inside of it."""
    scope = Scope(graph, names, outer)
    yield scope
    for node in graph.node:
        for inner in step.list_subgraphs(node):
            yield from open_scopes(inner, names, scope)


class Operand:
    """Input of a quantized node, as floats: the value before its dynamic quantization, or a constant.

    The zero point is subtracted from a constant, but the scale is not applied.
    """

    def __init__(self, value: str, moved: list[Any], scale: str = "", array: Any = None) -> None:
        self.value = value
        self.moved = moved
        """Nodes that move the elements of the value, in order."""
        self.scale = scale
        """Scale that DynamicQuantizeLinear computes. Empty for a constant."""
        self.array = array
        """Elements of the constant. None for a value that is not constant."""


class Scope:
    """One graph, with the values that its nodes can read."""

    def __init__(self, graph: Any, names: Names, outer: Scope | None) -> None:
        self.graph = graph
        self.names = names
        self.outer = outer
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in step.list_read_values(node):
                self.readers.setdefault(name, []).append(node)
        self.replacements: dict[str, list[Any]] = {}
        """New nodes, by the first output of the node that they replace."""
        self.added: dict[tuple[Any, ...], str] = {}
        """Names of new constants and of the results of new moving nodes, by their content."""

    # -- Reading -------------------------------------------------------------------------------------------------------

    def find_maker(self, name: str) -> Any:
        """Return the node that computes a value, in this graph or an outer one, or None."""
        return self.makers.get(name) or (self.outer.find_maker(name) if self.outer else None)

    def find_tensor(self, name: str) -> Any:
        """Return the constant of a name, in this graph or an outer one, or None."""
        node = self.makers.get(name)
        if node is not None and node.op_type == "Identity":
            return self.find_tensor(node.input[0])
        if node is not None:
            is_tensor = node.op_type == "Constant" and node.attribute[0].name == "value"
            return node.attribute[0].t if is_tensor else None
        return self.tensors.get(name) or (self.outer.find_tensor(name) if self.outer else None)

    def read_constant(self, name: str) -> Any:
        """Return the elements of a constant, or None if the value is not constant."""
        import onnx

        tensor = self.find_tensor(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def find_only_reader(self, name: str, operator: str) -> Any:
        """Return the only node that reads a value if it has this operator, or else None."""
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and readers[0].op_type == operator and name not in self.outputs else None

    def find_operand(self, value: str, zero_point: str, axis: int = -1) -> Operand:
        """Return a quantized input of a node. A constant may have a zero point per element of `axis`. Raises KeepError."""
        moved: list[Any] = []
        name, maker = value, self.find_maker(value)
        while maker is not None and maker.op_type in MOVING and self.find_tensor(name) is None:
            moved.insert(0, maker)
            name = maker.input[0]
            maker = self.find_maker(name)
        if maker is not None and maker.op_type == "DynamicQuantizeLinear":
            if name != maker.output[0] or zero_point != maker.output[2]:
                raise KeepError("its zero point is not the zero point of its input")
            return Operand(maker.input[0], moved, scale=maker.output[1])
        array = self.read_constant(name)
        zero = self.read_constant(zero_point) if zero_point else None
        if array is None or (zero_point and zero is None):
            raise KeepError("an input is neither constant nor dynamically quantized")
        array = array.astype("float32")
        if zero is not None:
            array = array - spread(zero.astype("float32"), array, axis, is_moved=bool(moved))
        return Operand(name, moved, array=array)

    def list_factors(self, name: str) -> list[str]:
        """Return values whose product is this value."""
        maker = self.find_maker(name)
        if maker is None or maker.op_type != "Mul":
            return [name]
        return [factor for value in maker.input for factor in self.list_factors(value)]

    def divide(self, name: str, scales: list[str]) -> tuple[list[str], Any]:
        """Divide a value by those of `scales` that are its factors. Return the other scales, and the quotient if it is constant."""
        import numpy

        others, quotient = list(scales), numpy.ones((), "float32")
        for factor in self.list_factors(name):
            if factor in others:
                others.remove(factor)
                continue
            array = self.read_constant(factor)
            if array is None or array.dtype != numpy.float32:
                return others, None
            quotient = quotient * array
        return others, quotient

    # -- Replacing -----------------------------------------------------------------------------------------------------

    def replace_nodes(self, done: Counter[str], kept: Counter[tuple[str, str]]) -> None:
        """Replace the quantized nodes of the graph. Count them, and count the nodes that stay with their reasons."""
        for node in self.graph.node:
            replace = REPLACEMENTS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
            try:
                if replace is not None and replace(self, node):
                    done[node.op_type] += 1
            except KeepError as error:
                kept[node.op_type, str(error)] += 1
        nodes = []
        for node in self.graph.node:
            new = self.replacements.get(get_key(node))
            nodes += [node] if new is None else new
            if new is not None:
                self.names.released.update(node.input)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        step.sort_nodes(self.graph)

    def replace_product(self, node: Any) -> bool:
        """Replace MatMulInteger or ConvInteger, and the Cast and the Mul nodes that apply the scales. Raises KeepError."""
        import numpy

        is_matmul = node.op_type == "MatMulInteger"
        first, second, zero, second_zero = pad(node.input, 4)
        operands = [self.find_operand(first, zero), self.find_operand(second, second_zero, -1 if is_matmul else 0)]
        bias, summed = self.find_bias(node.output[0])
        cast = self.find_only_reader(summed, "Cast")
        if cast is None or cast.attribute[0].i != FLOAT:
            raise KeepError("its result is not only converted to float32")
        scales = [operand.scale for operand in operands if operand.scale]
        product, last = numpy.ones((), "float32"), cast.output[0]
        arrays = fold(operands, product, is_matmul)
        for scaling, other in self.find_scalings(last, bias):
            others, factor = self.divide(other, scales)
            folded = None if factor is None else fold(operands, product * factor, is_matmul)
            if folded is None:
                break
            scales, product, last, arrays = others, product * factor, scaling.output[0], folded
        if scales:
            raise KeepError("its result is not multiplied by the scales of its inputs and by constants per channel only")
        new: list[Any] = []
        names = [self.add_operand(*item, new) for item in zip(operands, arrays)]  # noqa: B905 - older interpreters
        result = last if bias is None else self.names.make(f"{last}_product")
        new.append(make_node("MatMul" if is_matmul else "Conv", names, [result], node.name, node.attribute))
        if bias is not None:
            names = [result, self.add_operand(bias, None, new)]
            new.append(make_node("Add", names, [last], self.names.make(f"{node.name}_bias")))
        self.replacements[last] = new
        return True

    def find_bias(self, product: str) -> tuple[Operand | None, str]:
        """Return the bias that is added to an integer product, and the name of the sum. Without a bias, this is the product.

        Some quantizers divide the bias by the scale of the product at run time, and cast it to an integer.
        """
        adding = self.find_only_reader(product, "Add")
        if adding is None:
            return None, product
        name = adding.input[0 if adding.input[1] == product else 1]
        moved: list[Any] = []
        while (maker := self.find_maker(name)) is not None and maker.op_type in (*MOVING, "Cast", "Floor", "Round"):
            if maker.op_type in MOVING:
                moved.insert(0, maker)
            name = maker.input[0]
        if maker is None or maker.op_type != "Div":
            raise KeepError("another value is added to its result")
        return Operand(maker.input[0], moved, scale=maker.input[1]), adding.output[0]

    def find_scalings(self, name: str, bias: Operand | None) -> Any:
        """Yield the Mul nodes that scale a value one after another, each with its other factor. A bias has only one scale."""
        while (scaling := self.find_only_reader(name, "Mul")) is not None and list(scaling.input).count(name) == 1:
            other = scaling.input[0 if scaling.input[1] == name else 1]
            if bias is not None and other != bias.scale:
                return
            yield scaling, other
            if bias is not None:
                return
            name = scaling.output[0]

    def replace_fused_matmul(self, node: Any) -> bool:
        """Replace a MatMul that has its scales and its bias as inputs. Raises KeepError."""
        import numpy

        if node.op_type == "DynamicQuantizeMatMul":
            value, weight, scale, zero_point, bias = pad(node.input, 5)
            operands = [Operand(value, []), self.find_operand(weight, zero_point)]
            constants = [scale]
        else:
            value, weight, value_scale, scale, value_zero, zero_point, bias = pad(node.input, 7)
            operands = [self.find_operand(value, value_zero), self.find_operand(weight, zero_point)]
            constants = [scale, *([value_scale] if operands[0].scale != value_scale else [])]
            if len(constants) > 1 and operands[0].scale:
                raise KeepError("a scale is not the scale of its input")
        product: Any = numpy.ones((), "float32")
        for name in constants:
            factor = self.read_constant(name)
            product = None if factor is None or product is None else product * factor
        arrays = None if product is None else fold(operands, product, is_matmul=True)
        if arrays is None:
            raise KeepError("a scale is not constant, or it is not per channel")
        new: list[Any] = []
        names = [self.add_operand(*item, new) for item in zip(operands, arrays)]  # noqa: B905 - older interpreters
        result = self.names.make(f"{node.output[0]}_product") if bias else node.output[0]
        new.append(make_node("MatMul", names, [result], node.name))
        if bias:
            new.append(make_node("Add", [result, bias], node.output, self.names.make(f"{node.name}_bias")))
        self.replacements[get_key(node)] = new
        return True

    def replace_lstm(self, node: Any) -> bool:
        """Replace DynamicQuantizeLSTM, whose weights are transposed. Raises KeepError."""
        inputs = pad(node.input, 12)
        numbers = inputs[8:]  # the scale and the zero point of the weights, and then those of the recurrent weights
        del inputs[8:]
        for index in (1, 2):
            arrays = [self.read_constant(name) for name in (inputs[index], *numbers[2 * index - 2 : 2 * index])]
            if any(array is None for array in arrays):
                raise KeepError("its weights are not constant")
            weight, *per_direction = (array.astype("float32") for array in arrays)
            scale, zero = (array if array.size == 1 else array.reshape(len(weight), 1, -1) for array in per_direction)
            inputs[index] = self.add_constant(inputs[index], ((weight - zero) * scale).transpose(0, 2, 1))
        while not inputs[-1]:
            inputs.pop()
        self.replacements[get_key(node)] = [make_node("LSTM", inputs, node.output, node.name, node.attribute)]
        return True

    def replace_dequantization(self, node: Any) -> bool:
        """Replace DequantizeLinear of a dynamically quantized value, or of a constant that other nodes have moved.

        Return whether the node was replaced. A constant that is dequantized directly belongs to a static quantization.
        """
        value, scale, zero_point = pad(node.input, 3)
        try:
            operand = self.find_operand(value, zero_point)
        except KeepError:
            return False
        array = operand.array
        if array is not None:
            factor = self.read_constant(scale)
            if not operand.moved or factor is None or factor.size != 1:
                return False
            array = array * factor
        elif scale != operand.scale:
            return False
        new: list[Any] = []
        new.append(make_node("Identity", [self.add_operand(operand, array, new)], node.output, node.name))
        self.replacements[get_key(node)] = new
        return True

    def keep_attention(self, node: Any) -> bool:
        """Keep QAttention, which has no float operator. Raises KeepError."""
        raise KeepError("ONNX has no such operator for floats")

    def add_operand(self, operand: Operand, array: Any, nodes: list[Any]) -> str:
        """Return the name of an operand of floats. Add the nodes that move its elements to `nodes`."""
        name = operand.value if array is None else self.add_constant(operand.value, array)
        for old in operand.moved:
            key = (old.output[0], name)
            if key not in self.added:
                self.added[key] = self.names.make(f"{old.output[0]}_float")
                own = self.names.make(f"{old.name or old.op_type}_float")
                nodes.append(make_node(old.op_type, [name, *old.input[1:]], [self.added[key]], own, old.attribute))
            name = self.added[key]
        return name

    def add_constant(self, name: str, array: Any) -> str:
        """Add an initializer of float32 that replaces the constant `name`, and return its name. Equal ones are added once."""
        import numpy
        import onnx

        floats = numpy.ascontiguousarray(array, numpy.float32)
        key = (floats.shape, hashlib.sha256(floats.data).digest())
        if key not in self.added:
            self.added[key] = self.names.make(f"{name}_float")
            self.graph.initializer.append(onnx.numpy_helper.from_array(floats, self.added[key]))
        return self.added[key]

    def remove_unused(self, released: set[str]) -> None:
        """Remove nodes and constants that are no longer read. `released` has the values that removed nodes read."""
        while True:
            read = {name for node in self.graph.node for name in step.list_read_values(node)} | self.outputs
            nodes = [node for node in self.graph.node if released.isdisjoint(node.output) or not read.isdisjoint(node.output)]
            if len(nodes) == len(self.graph.node):
                break
            remaining = {get_key(node) for node in nodes}
            for node in self.graph.node:
                if get_key(node) not in remaining:
                    released.update(step.list_read_values(node))
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        gone = {name for name in self.tensors if name in released and name not in read}
        known = read | {name for node in self.graph.node for name in node.output}
        for values, is_gone in (
            (self.graph.initializer, gone.__contains__),
            (self.graph.input, gone.__contains__),
            (self.graph.value_info, lambda name: name not in known),
        ):
            for index in reversed(range(len(values))):
                if is_gone(values[index].name):
                    del values[index]


def get_key(node: Any) -> str:
    """Return the name of the first output of a node."""
    return next((name for name in node.output if name), "")


def pad(inputs: Any, count: int) -> list[str]:
    """Return the inputs of a node, with empty names for those that it omits."""
    return [*inputs, *[""] * (count - len(inputs))]


def make_node(operator: str, inputs: Any, outputs: Any, name: str, attributes: Any = ()) -> Any:
    """Return a node of ONNX's own operators."""
    import onnx

    node = onnx.helper.make_node(operator, inputs, outputs, name)
    node.attribute.extend(attributes)
    return node


def spread(values: Any, array: Any, axis: int, is_moved: bool) -> Any:
    """Return the zero points of a constant in a shape that broadcasts to it. Raises KeepError."""
    if values.size == 1:
        return values.reshape(())
    if is_moved or values.size != array.shape[axis]:
        raise KeepError("a constant has zero points that are neither per tensor nor per channel")
    shape = [1] * array.ndim
    shape[axis] = values.size
    return values.reshape(shape)


def fold(operands: list[Operand], scale: Any, is_matmul: bool) -> Any:
    """Return the arrays of the operands, of which a constant is multiplied by `scale`. Return None if that is impossible.

    `scale` multiplies the result of the node, so it may have one element per channel of the result.
    """
    arrays = [operand.array for operand in operands]
    if scale.size == 1:
        index = next((index for index in (1, 0) if arrays[index] is not None), None)
        if scale == 1 or index is None:
            return arrays if scale == 1 else None
        arrays[index] = arrays[index] * scale.reshape(())
        return arrays
    weight = arrays[1]
    if weight is None or operands[1].moved or weight.ndim < 2:
        return None
    axis, place = (-1, -1) if is_matmul else (0, 1 - weight.ndim)
    if scale.ndim < -place or scale.shape[place] != scale.size or scale.size != weight.shape[axis]:
        return None
    arrays[1] = weight * spread(scale, weight, axis, is_moved=False)
    return arrays


REPLACEMENTS = {
    ("", "MatMulInteger"): Scope.replace_product,
    ("", "ConvInteger"): Scope.replace_product,
    ("", "DequantizeLinear"): Scope.replace_dequantization,
    ("com.microsoft", "DynamicQuantizeLSTM"): Scope.replace_lstm,
    ("com.microsoft", "DynamicQuantizeMatMul"): Scope.replace_fused_matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): Scope.replace_fused_matmul,
    ("com.microsoft", "QAttention"): Scope.keep_attention,
}

if __name__ == "__main__":
    step.main(dequantize)
