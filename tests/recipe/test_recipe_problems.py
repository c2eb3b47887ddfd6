"""Problems of recipes: each has its code and the position of the mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epbuild.core.errors import RecipeError
from epbuild.recipe.load import load
from tests.recipe.texts import MINIMAL, load_text, problems_of
from tests.support.recipe_texts import MARK, codes_and_places, places

IN_GROUP = "    targets: [npu]\n"
LEVEL = "{graph_optimization_level: ‸%s}"
IN_SHARING = IN_GROUP + "    share_weights: true\n"
DIGITS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
MANY_ROWS = (
    f"    matrix: ‸{{a: {DIGITS}, b: {DIGITS}, c: {DIGITS}, d: {DIGITS}, e: {DIGITS}, f: {DIGITS}, g: {DIGITS}}}\n    ep: Q"
)

# Each row: a text of the minimal recipe, its replacement (the mark stands before the expected position), the code, and a
# part of the message or hint.
MISTAKES = [
    ("tab indentation", "  npu:\n", "‸\tnpu:\n", "EPB101", "tab"),
    ("missing colon", "  quality: 3\n", "  quality: 3\n  ‸speed 4\n", "EPB101", "missing ':'"),
    ("colon in plain text", "name: tiny", "name: a‸: tiny", "EPB101", "':' is not allowed here"),
    ("unclosed quote", "name: tiny", "name: ‸'tiny", "EPB101", "unclosed"),
    ("missing colon after a section", "  npu:\n", "  npu\n", "EPB101", "the line above"),
    ("list closed too late", "models: [prefill]", "models: [prefill", "EPB101", "(from line 16)"),
    ("list never closed", "    path: dist/${group}/${target}\n", "    path: ‸[dist", "EPB101", "unclosed"),
    ("list that ends in the air", "    path: dist/${group}/${target}\n", "    path: [dist,‸ \n\n", "EPB101", "unexpected end"),
    ("text that begins with @", "name: tiny", "name: ‸@tiny", "EPB101", "'@'"),
    ("reference in a flow mapping", "  quality: 3", "  quality: {a: $‸{b}}", "EPB101", "in quotes"),
    ("tag", "name: tiny", "name: ‸!!python/object:os.system tiny", "EPB101", "tags"),
    ("tag on a mapping", "vars:\n", "vars: ‸!!map\n", "EPB101", "tags"),
    ("second document", "outputs:", "‸---\noutputs:", "EPB101", "second one"),
    ("unknown alias", "name: tiny", "name: ‸*tiny", "EPB101", "'*tiny'"),
    ("alias inside itself", "vars:\n", "vars: &v\n  again: ‸*v\n", "EPB101", "refers to a value that contains it"),
    ("control character", "name: tiny", "name: ti‸\x07ny", "EPB101", "U+0007"),
    ("escape beyond the last character", "name: tiny", 'name: "\\U‸FFFFFFFF"', "EPB101", ""),
    ("key twice", "    ep: QNNExecutionProvider\n", "    ep: A\n    ‸ep: B\n", "EPB102", "line 13, column 5"),
    ("key twice, once in quotes", "    ep: Q", "    session_options: {1: a, ‸'1': b}\n    ep: Q", "EPB102", "'1'"),
    ("section twice", "outputs:", "‸vars: {}\noutputs:", "EPB102", "line 3, column 1"),
    ("key that is a list", "  quality: 3\n", "  ‸[a]: b\n", "EPB105", "a key must be a string"),
    ("merge of a text", "  quality: 3\n", "  <<: ‸quality\n", "EPB105", "'<<'"),
    ("unknown key, nearly known", "    targets: [npu]", "    targets: [npu]\n    ‸shareweights: true",
     "EPB103", "'share_weights'"),
    ("unknown key, near nothing", "    toolchain: qnn\n", "    toolchain: qnn\n    ‸xyz: 1\n", "EPB103", "provider_options"),
    ("unknown section", "outputs:", "‸settings: {}\noutputs:", "EPB103", "in the recipe"),
    ("missing section", "models:\n  prefill: prefill.onnx\n", "", "EPB104", "'models'"),
    ("missing key", "  - layout: directory\n    path", "  - ‸path", "EPB104", "'layout' is missing in outputs[0]"),
    ("merge without a name", IN_GROUP, IN_GROUP + "    merge: ‸{connect: {a.y: b.x}}\n", "EPB104", "'name'"),
    ("merge into a name that a template spoils", IN_GROUP, IN_GROUP + '    merge: {name: ‸"a b${group}"}\n', "EPB107", "invalid name"),
    ("connections as a list", IN_GROUP, IN_GROUP + "    merge: {name: m, connect: ‸[a.y=b.x]}\n", "EPB105", "a mapping"),
    ("output that feeds nothing", IN_GROUP, IN_GROUP + "    merge: {name: m, connect: {a.y: ‸[]}}\n", "EPB106", ""),
    ("number for a yes or no", IN_GROUP, IN_GROUP + "    allow_nondeterminism: ‸3\n", "EPB105", "true or false"),
    ("literal template for a yes or no", IN_GROUP, IN_GROUP + "    share_weights: ‸'$${x}'\n", "EPB105", "true or false"),
    ("literal template for a word", "    ep: Q", "    device: {type: ‸'$${x}'}\n    ep: Q", "EPB106", "expected one of cpu, gpu, npu"),
    ("literal template for a number", IN_GROUP, IN_GROUP + "    timeout: ‸'$${x}'\n", "EPB105", "a number"),
    ("word for a yes or no", IN_GROUP, IN_GROUP + "    allow_nondeterminism: ‸no way\n", "EPB105", "true or false"),
    ("unknown target that may fail", IN_GROUP, IN_GROUP + "    allow_failure: [‸gpu]\n", "EPB108", "'gpu'"),
    ("target of others that may fail", "groups:\n  decoder:\n",
     "  gpu: {toolchain: qnn, ep: QNNExecutionProvider}\ngroups:\n  decoder:\n    allow_failure: [npu, ‸g*]\n",
     "EPB106", "'allow_failure' names a target that the group does not have. Targets of the group: npu."),
    ("number for a prefix", IN_GROUP, IN_GROUP + "    merge: {name: m, prefixes: {a: ‸1}}\n", "EPB105", ""),
    ("missing path of a model", "prefill.onnx", "‸{sha256: " + "a" * 64 + "}", "EPB106", "'path', 'make' or 'from'"),
    ("command without a toolchain", "prefill.onnx", "{make: ‸{run: [python]}}", "EPB104", "'toolchain'"),
    ("built-in preparation that makes a model", "prefill.onnx", "{make: {run: [a], toolchain: qnn, ‸cut: {}}}", "EPB103", "'cut'"),
    ("command in an unknown toolchain", "prefill.onnx", "{make: {run: [a], toolchain: ‸qn}}", "EPB108", "'qnn'"),
    ("pin of a made model", "prefill.onnx", "{make: {run: [a], toolchain: qnn}, sha256: ‸" + "a" * 64 + "}", "EPB106", "'path'"),
    ("two sources of a model", "prefill.onnx", "{path: a, from: ‸b, prepare: [{opset: 21}]}", "EPB106", "only one of"),
    ("model from another without a preparation", "prefill.onnx\n", "prefill.onnx\n  part: ‸{from: prefill}\n",
     "EPB104", "'prepare'"),
    ("pin of a model from another", "prefill.onnx\n",
     "prefill.onnx\n  part: {from: prefill, prepare: [{opset: 21}], external_data: ‸a}\n", "EPB106", "only for a model with 'path'"),
    ("model from an unknown one", "prefill.onnx\n", "prefill.onnx\n  part: {from: ‸prefil, prepare: [{opset: 21}]}\n",
     "EPB108", "Did you mean 'prefill'?"),
    ("model from itself", "prefill.onnx\n", "prefill.onnx\n  part: {from: ‸part, prepare: [{opset: 21}]}\n",
     "EPB106", "the model 'part' is made from itself: part -> part"),
    ("models from each other", "prefill.onnx\n",
     "prefill.onnx\n  one: {from: ‸two, prepare: [{opset: 21}]}\n  two: {from: one, prepare: [{opset: 21}]}\n",
     "EPB106", "one -> two -> one"),
    ("external initializers without a file", IN_GROUP, IN_GROUP + "    compile: {initializers: ‸{store: external}}\n",
     "EPB104", "'file'"),
    ("number for a text", "    packages:", "    python: ‸3.10\n    packages:", "EPB105", 'Put it in quotes to make it a string: "3.10".'),
    ("yes for true", IN_GROUP, IN_GROUP + "    share_weights: ‸yes\n", "EPB105", "true or false"),
    ("text for a list", "models: [prefill]", "models: ‸prefill", "EPB105", "expected a list"),
    ("list for a mapping", "  npu:\n    toolchain: qnn\n    ep: QNNExecutionProvider\n", "  npu: ‸[]\n", "EPB105", "a mapping"),
    ("list for a toolchain", "  qnn:\n    packages: [onnxruntime-qnn==2.7.0]\n", "  qnn: ‸[]\n", "EPB105", "a mapping"),
    ("nothing where a text belongs", "name: tiny", "name:‸", "EPB105", "no value"),
    ("null option", "    ep: QNNExecutionProvider\n", "    ep: Q\n    provider_options: {a: ‸null}\n", "EPB105", "no value"),
    ("list as an option", "    ep: QNNExecutionProvider\n", "    ep: Q\n    provider_options: {a: ‸[1]}\n",
     "EPB105", "found a list"),
    ("list as a variable", "quality: 3", "quality: ‸[3]", "EPB105", "found a list"),
    ("fraction for a count", IN_GROUP, IN_GROUP + "    expect: {fallback_nodes: ‸0.5}\n", "EPB105", "a whole number"),
    ("number for an enum", "layout: directory", "layout: ‸3", "EPB105", "directory"),
    ("number in metadata", "    ep: QNNExecutionProvider\n", "    ep: Q\n    device: {metadata: {arch: ‸73}}\n",
     "EPB105", "a string"),
    ("variable of another type", "    targets: [npu]\n", "    targets: ['${vars.quality}']\n", "EPB105", "a string"),
    ("unknown layout", "layout: directory", "layout: ‸directry", "EPB106", "'directory'"),
    ("unknown device type", "    ep: QNNExecutionProvider\n", "    ep: Q\n    device: {type: ‸dsp}\n", "EPB106", "cpu, gpu, npu"),
    ("another language version", "epbuild: 1", "epbuild: ‸2", "EPB106", "version 2"),
    ("version as a text", "epbuild: 1", 'epbuild: ‸"1"', "EPB106", "the number 1"),
    ("negative count", IN_GROUP, IN_GROUP + "    expect: {ep_context_nodes: ‸-1}\n", "EPB106", "at least 0"),
    ("check that is a text", IN_GROUP, IN_GROUP + "    verify: ‸sometimes\n", "EPB105", "a mapping"),
    ("metric that is none", IN_GROUP, IN_GROUP + "    verify: {metrics: {‸cosin: 0.9}}\n", "EPB103", "'cosine'"),
    ("cosine beyond one", IN_GROUP, IN_GROUP + "    verify: {metrics: {cosine: ‸99}}\n", "EPB106", "the maximum of 1"),
    ("no metrics", IN_GROUP, IN_GROUP + "    verify: {metrics: ‸{}}\n", "EPB106", ""),
    ("range of one number", IN_GROUP, IN_GROUP + "    verify: {data: {ranges: {x: ‸[3]}}}\n", "EPB106", ""),
    ("range that ends before it begins", IN_GROUP, IN_GROUP + "    verify: {data: {ranges: {x: ‸[3, 1]}}}\n",
     "EPB106", "the smallest number, followed by the largest number"),
    ("no inputs", IN_GROUP, IN_GROUP + "    verify: {data: ‸[]}\n", "EPB106", ""),
    ("an absurd growth of a figure", IN_GROUP, IN_GROUP + "    expect: {baseline: a.json, max_growth: {load_ms: ‸1e300}}\n",
     "EPB106", "1000"),
    ("no set of inputs", IN_GROUP, IN_GROUP + "    verify: {data: {samples: ‸0}}\n", "EPB106", "at least 1"),
    ("unknown reference", IN_GROUP, IN_GROUP + "    verify: {reference: ‸mine}\n", "EPB106", "source, prepared"),
    ("profile of a command", IN_GROUP, IN_GROUP + "    measure: {command: ['${in}', '${out}'], profile: ‸true}\n",
     "EPB106", "'profile' of 'measure' cannot be combined with 'command'"),
    ("share of everything", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: {min_ratio: ‸1, measure: alone}}\n",
     "EPB106", "less than 1"),
    ("share of nothing", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: {min_ratio: ‸0, measure: alone}}\n", "EPB106", "more than 0"),
    ("share in percent", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: {min_ratio: ‸30%, measure: alone}}\n",
     "EPB106", "must be a number that is"),
    ("share that is no number", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: {min_ratio: ‸.nan, measure: alone}}\n",
     "EPB106", "must be a number"),
    ("share without its key", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: ‸0.3}\n", "EPB105", "a mapping"),
    ("shared bytes without a ratio", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: ‸{measure: alone}}\n", "EPB104", "'min_ratio'"),
    ("unmeasured shared bytes", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: ‸{min_ratio: 0.3}}\n", "EPB104", "'measure'"),
    ("most shared bytes", IN_GROUP, IN_SHARING + "    expect: {shared_bytes: {min_ratio: 0.3, measure: alone, ‸max_ratio: 0.4}}\n",
     "EPB103", "'min_ratio'"),
    ("shared bytes where nothing is shared", IN_GROUP, IN_GROUP + "    expect: {shared_bytes: ‸{min_ratio: 0.3, measure: alone}}\n",
     "EPB106", "requires 'share_weights: true'"),
    ("shared bytes where sharing is off", IN_GROUP,
     IN_GROUP + "    share_weights: false\n    expect: {shared_bytes: ‸{min_ratio: 0.3, measure: alone}}\n",
     "EPB106", "requires 'share_weights: true'"),
    ("shared bytes of one member", "models: [prefill]\n",
     "models: [{model: prefill, expect: {shared_bytes: ‸{min_ratio: 0.3, measure: alone}}}]\n    share_weights: true\n",
     "EPB106", "the group's own 'expect'"),
    ("shared initializers where nothing is shared", IN_GROUP, IN_GROUP + "    share_initializers: ‸true\n",
     "EPB106", "requires 'share_weights: true'"),
    ("shared initializers that are a text", IN_GROUP, IN_SHARING + "    share_initializers: ‸file.bin\n", "EPB105", "a mapping"),
    ("shared initializers from less than nothing on", IN_GROUP, IN_SHARING + "    share_initializers: {threshold: ‸-1}\n",
     "EPB106", "at least 0"),
    ("shared initializers in a file of a name", IN_GROUP, IN_SHARING + "    share_initializers: {‸file: w.bin}\n",
     "EPB103", "Allowed here: threshold"),
    ("no time at all", IN_GROUP, IN_GROUP + "    timeout: ‸0\n", "EPB106", "more than 0"),
    ("timeout that is a text", IN_GROUP, IN_GROUP + "    timeout: ‸90s\n", "EPB106", "seconds"),
    ("timeout by a negative variable", "quality: 3", "quality: -3", "EPB106", "more than 0"),
    ("short digest", "prefill.onnx", "{path: a, sha256: ‸3f5a}", "EPB106", "64"),
    ("empty path", "prefill: prefill.onnx", "prefill: ‸''", "EPB106", "empty"),
    ("file name emptied by a variable", "quality: 3", "quality: ''", "EPB106", "empty"),
    ("no packages", "[onnxruntime-qnn==2.7.0]", "‸[]", "EPB106", "empty"),
    ("no groups", "groups:\n  decoder:\n    models: [prefill]\n    targets: [npu]\n", "groups: ‸{}\n", "EPB106", "empty"),
    ("no environment", "    packages: [onnxruntime-qnn==2.7.0]", "    ‸python: '3.11'", "EPB106", "'interpreter'"),
    ("packages of an interpreter with a range", "    packages: [onnxruntime-qnn==2.7.0]",
     "    packages: [a==1, ‸b>=1.2]\n    interpreter: b", "EPB106", "With 'interpreter', write"),
    ("packages of an interpreter with an extra", "    packages: [onnxruntime-qnn==2.7.0]",
     "    packages: [‸'a[b]==1']\n    interpreter: b", "EPB106", "<name>==<version>"),
    *((f"package that is {what}", "[onnxruntime-qnn==2.7.0]", f"[a==1, ‸{json.dumps(text)}]", "EPB106", "UV_FIND_LINKS")
      for what, text in {
          "an option": "--index-url=https://evil.example", "a short option": "-r/etc/passwd", "a path": "./a.whl",
          "a file": "a @ file:///a.whl", "two lines": "a==1\n--index-url=https://evil.example", "a line end": "a==1\n",
          "an address": "https://evil.example/a.whl", "over http": "a @ http://evil.example/a.whl", "a hash": "a==1 --hash=sha256:0",
      }.items()),
    ("python that is an option", "    packages: [onnxruntime-qnn==2.7.0]",
     "    packages: [onnxruntime-qnn==2.7.0]\n    python: ‸--help", "EPB106", "invalid Python"),
    ("package that a variable empties", "quality: 3", "quality: ''", "EPB106", "empty"),
    ("marker that a variable makes", "quality: 3", "quality: \"a==1; python_version > '3'\"", "EPB106", "cannot be checked"),
    ("python of an interpreter", "packages: [onnxruntime-qnn==2.7.0]", "interpreter: b\n    python: ‸'3.11'",
     "EPB106", "remove it, or remove 'interpreter'"),
    ("file of inline initializers", IN_GROUP, IN_GROUP + "    compile: {initializers: {file: ‸a.bin}}\n",
     "EPB106", "store: external"),
    ("NUL in a text", "prefill.onnx", '‸"a\\0b"', "EPB106", "U+0000"),
    ("name with a space", "name: tiny", "name: ‸tiny llm", "EPB107", "letters"),
    ("name with a slash", "  prefill: p", "  ‸pre/fill: p", "EPB107", "letters"),
    ("name that ends with a dot", "name: tiny", "name: ‸tiny.", "EPB107", "'.'"),
    ("name with a line break", "name: tiny", 'name: ‸"tiny\\n"', "EPB107", "tiny\\n"),
    ("name that Windows reserves", "name: tiny", "name: ‸Nul.model", "EPB107", "Windows"),
    ("key that Windows reserves", "  npu:\n", "  ‸COM1:\n", "EPB107", "Windows"),
    ("long name", "name: tiny", "name: ‸" + "x" * 101, "EPB107", "100"),
    ("variable with a dot", "  quality: 3", "  ‸quali.ty: 3", "EPB107", "variable"),
    ("models in two letter cases", "  prefill: prefill.onnx\n", "  prefill: a.onnx\n  ‸Prefill: b.onnx\n",
     "EPB107", "only in case"),
    ("matrix value that is no name", "    ep: Q", "    matrix: {soc: [a, ‸b/c]}\n    ep: Q", "EPB107", "'b/c'"),
    ("matrix value twice", "    ep: Q", "    matrix: {soc: [1, ‸'1']}\n    ep: Q", "EPB107", "duplicate"),
    ("row named like a target", "  npu:\n", "  npu-a: {toolchain: qnn, ep: Q}\n  ‸npu:\n    matrix: {x: [a]}\n",
     "EPB107", "'npu-a'"),
    ("unknown toolchain", "toolchain: qnn", "toolchain: ‸qn", "EPB108", "Did you mean 'qnn'?"),
    ("unknown model", "models: [prefill]", "models: [prefill, ‸other]", "EPB108", "Available: prefill"),
    ("unknown target", "targets: [npu]", "targets: [‸npv]", "EPB108", "Did you mean 'npu'?"),
    ("glob that matches nothing", "targets: [npu]", "targets: [npu, ‸gpu-*]", "EPB108", "no target matches 'gpu-*'"),
    ("unknown name in a template", "prefill.onnx", "‸${vars.qualty}/a.onnx", "EPB109", "Did you mean 'vars.quality'?"),
    ("name that only outputs know", "prefill.onnx", "‸${group}/a.onnx",
     "EPB109", "Allowed here: recipe.name, vars.quality, env.<NAME>."),
    ("matrix outside a matrix", "ep: QNNExecutionProvider", "ep: ‸${matrix.ep}", "EPB109", "unknown name"),
    ("unclosed reference", "prefill.onnx", "‸${vars.quality", "EPB109", "unclosed '${'"),
    ("unknown name in an output", "path: dist/${group}", "path: ‸dist/${grup}", "EPB109", "Did you mean 'group'?"),
    ("unknown name in a file name", "    path: dist", "    model: ‸${modl}.onnx\n    path: dist",
     "EPB109", "Did you mean 'model'?"),
    ("variable that refers to another", "quality: 3", "quality: ‸${vars.other}", "EPB109", "can refer only to environment variables"),
    ("unknown archive", "path: dist", "archive: ‸tar.zstd\n    path: dist", "EPB106", "Did you mean 'tar.zst'?"),
    ("unknown format of an archive", "path: dist", "archive: {format: ‸rar}\n    path: dist", "EPB106", "one of zip, tar.zst, oci"),
    ("level without a format", "path: dist", "archive: ‸{level: 9}\n    path: dist", "EPB104", "'format' is missing in outputs[0].archive"),
    ("level that deflate does not have", "path: dist", "archive: {format: zip, level: ‸12}\n    path: dist",
     "EPB106", "the compression level of zip must be between 1 and 9"),
    ("level that is a word", "path: dist", "archive: {format: oci, level: ‸best}\n    path: dist", "EPB105", "a whole number"),
    ("registry of a zip archive", "path: dist", "archive: {format: zip}\n    registry: ‸a/b:c\n    path: dist",
     "EPB106", "requires 'archive: oci'"),
    ("matrix with too many rows", "    ep: Q", MANY_ROWS, "EPB110", "10,000,000 rows"),
    ("base that is a list", "vars:\n", "extends: ‸[a.yaml]\nvars:\n", "EPB105", "a string"),
    ("base without a name", "vars:\n", "extends: ‸''\nvars:\n", "EPB106", "empty"),
    ("include that is a text", "vars:\n", "include: ‸a.yaml\nvars:\n", "EPB105", "expected a list"),
    ("include of a number", "vars:\n", "include: [‸3]\nvars:\n", "EPB105", "a string"),
    ("include that is not there", "vars:\n", "include: [‸parts/a.yaml]\nvars:\n",
     "EPB100", "no such file: 'parts/a.yaml'"),
    ("base that is a folder", "vars:\n", "extends: ‸.\nvars:\n", "EPB100", "not a file: '.'"),
    ("include by a variable", "vars:\n", "include: [‸'${vars.x}.yaml']\nvars:\n", "EPB109", "cannot contain a template"),
    ("recipe that includes itself", "vars:\n", "include: [‸epbuild.yaml]\nvars:\n", "EPB106", "epbuild.yaml → epbuild.yaml"),
    ("catalogs as a text", "vars:\n", "catalogs: ‸my-ep.toml\nvars:\n", "EPB105", "expected a list"),
    ("catalog without a name", "vars:\n", "catalogs: [‸'']\nvars:\n", "EPB106", "empty"),
    ("remote cache at an unknown place", "vars:\n", "cache: {remote: ‸'ftp://host/x'}\nvars:\n", "EPB106", "remote caches do not support"),
    ("remote cache by an unknown variable", "vars:\n", "cache: {remote: ‸'${vars.qualty}'}\nvars:\n", "EPB109", "vars.quality"),
    ("unknown key of the remote cache", "vars:\n", "cache: {remote: a, ‸trusted: []}\nvars:\n", "EPB103", "'trust'"),
    ("trust that is no key", "vars:\n", "cache: {trust: [‸me]}\nvars:\n", "EPB106", "epbuild cache key"),
    ("trust that is a text", "vars:\n", "cache: {trust: ‸me}\nvars:\n", "EPB105", "expected a list"),
    ("catalog by an unknown variable", "vars:\n", "catalogs: [‸'${vars.qualty}']\nvars:\n", "EPB109", "vars.quality"),
    ("target without an EP", "    ep: QNNExecutionProvider\n", "", "EPB106", "a target must have 'ep' or 'eps'"),
    ("EP in both forms", "    ep: Q", "    eps: [{ep: A}]\n    ep: ‸Q", "EPB106", "not both"),
    ("options beside a list of EPs", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A}]\n    provider_options: ‸{a: 1}\n",
     "EPB106", "in an entry"),
    ("device beside a list of EPs", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A}]\n    device: ‸{type: npu}\n",
     "EPB106", "in an entry"),
    ("library beside a list of EPs", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A}]\n    library: ‸a.so\n",
     "EPB106", "in an entry"),
    ("no EPs", "    ep: QNNExecutionProvider\n", "    eps: ‸[]\n", "EPB106", "empty"),
    ("EPs as a text", "    ep: QNNExecutionProvider\n", "    eps: ‸QNNExecutionProvider\n", "EPB105", "expected a list"),
    ("EP by its name alone", "    ep: QNNExecutionProvider\n", "    eps: [‸QNNExecutionProvider]\n", "EPB105", "a mapping"),
    ("EP of a list without a name", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A}, ‸{provider_options: {}}]\n",
     "EPB104", "targets.npu.eps[1]"),
    ("unknown key of an EP", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A, ‸provider_option: {}}]\n",
     "EPB103", "'provider_options'"),
    ("session options of an EP", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A, ‸session_options: {}}]\n",
     "EPB103", "unknown key"),
    ("list as an EP's option", "    ep: QNNExecutionProvider\n", "    eps: [{ep: A, provider_options: {a: ‸[]}}]\n",
     "EPB105", "found a list"),
    ("empty EP", "ep: QNNExecutionProvider", "ep: ‸''", "EPB106", "empty"),
    ("library that is no text", "    ep: Q", "    library: ‸3\n    ep: Q", "EPB105", "a string"),
    ("yes for a virtual device", "    ep: Q", "    device: {virtual: ‸yes}\n    ep: Q", "EPB105", "true or false"),
    ("unknown key of a device", "    ep: Q", "    device: {‸kind: npu}\n    ep: Q", "EPB103", "targets.npu.device"),
    ("device as a text", "    ep: Q", "    ‸device: npu\n    ep: Q", "EPB103", "unknown key"),
    ("environment as a list", "    ep: Q", "    environment: ‸[A=1]\n    ep: Q", "EPB105", "a mapping"),
    ("environment name with =", "    ep: Q", "    environment: {‸'A=B': 1}\n    ep: Q", "EPB107", "'='"),
    ("environment without a value", "    ep: Q", "    environment: {A: ‸}\n    ep: Q", "EPB105", "no value"),
    ("unknown session keys, misspelt", "    ep: Q", "    ‸allow_unknown_session_key: true\n    ep: Q",
     "EPB103", "'allow_unknown_session_keys'"),
    ("number for an escape hatch", "    ep: Q", "    allow_unknown_session_keys: ‸1\n    ep: Q", "EPB105", "true or false"),
    ("model over http", "prefill.onnx", "‸http://example.com/a.onnx", "EPB106", "Use https://"),
    ("address without a pin", "prefill.onnx", "‸https://example.com/a.onnx", "EPB104", "needs a 'sha256'"),
    ("bucket without a pin", "prefill: prefill.onnx", "prefill: {path: ‸s3://bucket/a.onnx}", "EPB104", "s3:// needs a 'sha256'"),
    ("gs without a pin", "prefill.onnx", "‸gs://bucket/a.onnx", "EPB104", "gs://"),
    ("az without a pin", "prefill.onnx", "‸az://container/a.onnx", "EPB104", "az://"),
    ("address without a file", "prefill.onnx", "‸https://example.com/", "EPB106", "does not name a file"),
    ("address with a password", "prefill.onnx", "‸https://me:secret@example.com/a.onnx", "EPB106", "a password"),
    ("unknown scheme", "prefill.onnx", "‸ftp://example.com/a.onnx", "EPB106", "cannot be fetched from 'ftp://'"),
    ("scheme in capitals", "prefill.onnx", "‸httpS://example.com/a.onnx", "EPB106", "Did you mean 'https'?"),
    ("repository without a revision", "prefill.onnx", "‸hf://owner/name/a.onnx", "EPB106", "no revision"),
    ("repository with an empty revision", "prefill.onnx", "‸hf://owner/name/a.onnx@", "EPB106", "@<revision>"),
    ("repository without a file", "prefill.onnx", "‸hf://owner/name@main", "EPB106", "does not name a file in a repository"),
    ("repository without a pin", "prefill.onnx", "‸hf://owner/name/a.onnx@main", "EPB104", "use a full commit id (40 digits)"),
    ("repository that cannot be one", "prefill.onnx", "‸hf://../name/a.onnx@main", "EPB106", "'../name'"),
    ("address with '..'", "prefill.onnx", "‸https://example.com/../a.onnx", "EPB106", "'..'"),
    ("address with a space", "prefill.onnx", "‸'s3://bucket/my model.onnx'", "EPB106", "a space"),
    ("address without a host", "prefill.onnx", "‸https://:80/a.onnx", "EPB106", "no valid host"),
    ("address from a variable", "quality: 3", "quality: ftp://a/b", "EPB106", "ftp"),
    ("folder of data for an address", "prefill.onnx", f"{{path: 'hf://a/b/m@{'0' * 40}', external_data: ‸data}}", "EPB106", "address"),
    ("empty folder of data", "prefill.onnx", "{path: a, external_data: ‸''}", "EPB106", "empty"),
    ("short digest of external data", "prefill.onnx", "{path: a, data_sha256: {a.data: ‸3f5a}}", "EPB106", "64"),
    ("dimensions by their kind", "prefill.onnx", "{path: a, dimensions: {by_name: ‸{seq: 64}}}", "EPB105", "a whole number"),
    ("dimension of nothing", "prefill.onnx", "{path: a, dimensions: {seq: ‸0}}", "EPB106", "at least 1"),
    ("half a dimension", "prefill.onnx", "{path: a, dimensions: {seq: ‸1.5}}", "EPB105", "a whole number"),
    ("dimension that is a text", "prefill.onnx", "{path: a, dimensions: {N: ‸one}}",
     "EPB106", "a whole number"),
    ("dimension by a negative variable", "quality: 3", "quality: -1", "EPB106", "at least 1"),
    ("unknown place to load from", "prefill.onnx", "{path: a, load_from: ‸memry}", "EPB106", "Did you mean 'memory'?"),
    ("older name of a value", "prefill.onnx", "{path: a, load_from: ‸bytes}", "EPB106", "Use 'memory' instead."),
    ("older name of a key", "    path: dist", "    ‸push: a/b:c\n    path: dist", "EPB103", "Use 'registry' instead."),
    ("unknown key of a model", "prefill.onnx", "{path: a, ‸sha265: b}", "EPB103", "'sha256'"),
    ("matrix that is a list", "    ep: Q", "    matrix: ‸[a]\n    ep: Q", "EPB105", "a mapping"),
    ("axis that is a text", "    ep: Q", "    matrix: {soc: ‸a}\n    ep: Q", "EPB105", "expected a list"),
    ("axis without values", "    ep: Q", "    matrix: {soc: ‸[]}\n    ep: Q", "EPB106", "empty"),
    ("axis with a dot", "    ep: Q", "    matrix: {‸s.oc: [a]}\n    ep: Q", "EPB107", "axis"),
    ("included row that is a text", "    ep: Q", "    matrix: {soc: [a], include: [‸b]}\n    ep: Q", "EPB105", "a mapping"),
    ("included row without values", "    ep: Q", "    matrix: {soc: [a], include: [‸{}]}\n    ep: Q", "EPB106", "empty"),
    ("included value that is no name", "    ep: Q", "    matrix: {soc: [a], include: [{soc: ‸b/c}]}\n    ep: Q",
     "EPB107", "'b/c'"),
    ("included row that is there", "    ep: Q", "    matrix: {soc: [a], include: [‸{soc: a}]}\n    ep: Q", "EPB107", "'npu-a'"),
    ("included rows of one name", "    ep: Q", "    matrix: {soc: [a], include: [{soc: b}, ‸{soc: b}]}\n    ep: Q",
     "EPB107", "'npu-b'"),
    ("exclude of nothing", "    ep: Q", "    matrix: {soc: [a], exclude: [‸{soc: b}]}\n    ep: Q", "EPB106", "matches no row"),
    ("exclude on an unknown axis", "    ep: Q", "    matrix: {soc: [a], exclude: [{‸sco: a}]}\n    ep: Q",
     "EPB108", "Did you mean 'soc'?"),
    ("exclude of everything", "    ep: Q", "    matrix: ‸{soc: [a], exclude: [{soc: a}]}\n    ep: Q", "EPB106", "no rows"),
    ("included rows that lack what a text reads",
     "    ep: Q", "    matrix: {soc: [a], include: [{arch: 81}]}\n    ep: ‸${matrix.soc}\n    #",
     "EPB109", "matrix.arch"),
    ("member without a model", "[prefill]", "[‸{compile: {}}]", "EPB104", "groups.decoder.models[0]"),
    ("member that is a list", "[prefill]", "[‸[prefill]]", "EPB105", "a string or a mapping"),
    ("unknown member", "[prefill]", "[{model: ‸prefil}]", "EPB108", "Did you mean 'prefill'?"),
    ("glob over models that matches nothing", "[prefill]", "[prefill, ‸layer-*]", "EPB108", "no model matches 'layer-*'"),
    ("unknown setting of a member", "[prefill]", "[{model: prefill, ‸timeout: 3}]", "EPB103", "compile"),
    ("member without the external file's name", "[prefill]", "[{model: prefill, compile: {initializers: ‸{store: external}}}]",
     "EPB104", "'file'"),
    ("unknown place for initializers", IN_GROUP, IN_GROUP + "    compile: {initializers: {store: ‸sauce}}\n",
     "EPB106", "Did you mean 'source'?"),
    ("file of initializers in the source", IN_GROUP, IN_GROUP + "    compile: {initializers: {store: source, file: ‸a}}\n",
     "EPB106", "store: external"),
    ("threshold of inline initializers", IN_GROUP, IN_GROUP + "    compile: {initializers: {threshold: ‸9}}\n",
     "EPB106", "store: external"),
    ("prefix by an unknown name", IN_GROUP, IN_GROUP + "    compile: {node_name_prefix: ‸'${modl}_'}\n",
     "EPB109", "Did you mean 'model'?"),
    ("prefix that is empty", IN_GROUP, IN_GROUP + "    compile: {node_name_prefix: ‸''}\n", "EPB106", "empty"),
    ("unknown optimization level", IN_GROUP, IN_GROUP + "    compile: {graph_optimization_level: ‸none}\n",
     "EPB106", "disable_all"),
    ("YAML 1.1 off for an optimization level", IN_GROUP, IN_GROUP + "    compile: {graph_optimization_level: ‸off}\n",
     "EPB106", "disable_all"),
    ("YAML 1.1 minutes for a timeout", IN_GROUP, IN_GROUP + "    timeout: ‸1:30\n", "EPB106", "seconds"),
    ("octal timeout", IN_GROUP, IN_GROUP + "    timeout: ‸012\n", "EPB106", "seconds"),
    ("level in C spelling", IN_GROUP, f"{IN_GROUP}    compile: {LEVEL % 'ORT_ENABLE_ALL'}\n", "EPB106", "Use 'all' instead"),
    ("level with enable_", IN_GROUP, f"{IN_GROUP}    compile: {LEVEL % 'enable_basic'}\n", "EPB106", "Use 'basic' instead"),
    ("a key that looks like a template", "ep: Q", "environment: {‸'A=${x}': 1}\n    ep: Q", "EPB107", "must not be empty or contain '='"),
    ("memory without a unit", IN_GROUP, IN_GROUP + "    memory: ‸'8'\n", "EPB106", "8 GB"),
    ("memory in an unknown unit", IN_GROUP, IN_GROUP + "    memory: ‸8 gigs\n", "EPB106", "8 GB"),
    ("no memory at all", IN_GROUP, IN_GROUP + "    memory: ‸0\n", "EPB106", "at least 1"),
    ("half a byte", IN_GROUP, IN_GROUP + "    memory: ‸0.5 B\n", "EPB106", "at least 1"),
    ("memory by a variable that is no size", "quality: 3", "quality: much", "EPB106", "invalid size 'much'"),
    ("unset environment variable", "prefill.onnx", "‸${env.EPBUILD_TEST_UNSET}/a.onnx",
     "EPB109", "'EPBUILD_TEST_UNSET' is not set"),
    ("environment variable without a name", "prefill.onnx", "‸${env.}/a.onnx", "EPB109", "unknown name"),
    ("default of a variable", "prefill.onnx", "‸${vars.quality:-4}/a.onnx", "EPB109", "Only an environment variable can have a default"),
    ("default that refers to a name", "prefill.onnx", "‸${env.A:-${vars.quality}}", "EPB109", "Write a literal default"),
    ("group in a model's path", "prefill.onnx", "‸'${model}.onnx'", "EPB109", "Allowed here"),
    ("variable of an unset environment variable", "quality: 3", "quality: ‸${env.EPBUILD_TEST_UNSET}", "EPB109", "is not set"),
]  # fmt: skip
# Further replacements, for mistakes far from their reported position, or that need a change elsewhere to be the only one.
ELSEWHERE = {
    "file name emptied by a variable": ("    path: dist", "    model: ‸${vars.quality}\n    path: dist"),
    "missing colon after a section": ("    toolchain:", "    toolchain‸:"),
    "list closed too late": ("targets: [npu]", "targets‸: [npu]"),
    "missing section": ("epbuild: 1", "‸epbuild: 1"),
    "variable of another type": ("['${vars", "[‸'${vars"),
    "timeout by a negative variable": (IN_GROUP, IN_GROUP + "    timeout: ‸${vars.quality}\n"),
    "key that Windows reserves": ("targets: [npu]", "targets: [COM1]"),
    "name with a slash": ("models: [prefill]", "models: [pre/fill]"),
    "target without an EP": ("  npu:\n    toolchain", "  npu:\n    ‸toolchain"),
    **dict.fromkeys(
        ("package that a variable empties", "marker that a variable makes"),
        ("    packages: [onnxruntime-qnn==2.7.0]", "    packages: [‸'${vars.quality}']\n    interpreter: b"),
    ),
    "address from a variable": ("prefill: prefill.onnx", "prefill: ‸'${vars.quality}'"),
    "dimension by a negative variable": (
        "prefill: prefill.onnx",
        "prefill: {path: a, dimensions: {seq: ‸'${vars.quality}'}}",
    ),
    "memory by a variable that is no size": (IN_GROUP, IN_GROUP + "    memory: ‸${vars.quality}\n"),
    **dict.fromkeys(
        ("included row that is there", "included rows of one name", "exclude of nothing"), ("targets: [npu]", "targets: [npu-*]")
    ),
    "row named like a target": ("targets: [npu]", "targets: [npu-a]"),
}


@pytest.mark.parametrize(("name", "old", "new", "code", "says"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_reported_once_with_its_code_and_exact_position(
    tmp_path: Path, name: str, old: str, new: str, code: str, says: str
) -> None:
    assert MINIMAL.count(old) >= 1
    text = MINIMAL.replace(old, new, 1).replace(*ELSEWHERE.get(name, ("", "")), 1)
    text, [place] = places(text)
    problems = problems_of(tmp_path, text)
    assert codes_and_places(problems) == [(code, *place)], problems
    assert says in str(problems[0])
    assert problems[0].text[-1] in ".!?"
    assert "\n" not in str(problems[0])


def test_schema_violations_and_wrong_references_are_reported_in_one_run(tmp_path: Path) -> None:
    text, expected = places("""\
epbuild: 1
‸nme: tiny
toolchains:
  qnn: {packages: ‸pkg}
  cpu: {packages: [a]}
models:
  a: a.onnx
  b: ‸${vars.nothing}/b.onnx
targets:
  npu: {toolchain: ‸qnm, ep: Q}
  gpu: {toolchain: qnn, ep: Q, ‸typ: 1}
groups:
  g: {models: [a, ‸c], targets: [npu], share_weights: ‸on}
  h: {models: [a, ‸c], targets: [npu]}
outputs:
  - {layout: ‸zip, path: x}
  - {layout: directory, path: ‸"x${grup}"}
""")
    codes = ["EPB103", "EPB105", "EPB109", "EPB108", "EPB103", "EPB108", "EPB105", "EPB108", "EPB106", "EPB109"]
    assert codes_and_places(problems_of(tmp_path, text)) == [(code, *place) for code, place in zip(codes, expected, strict=True)]


def test_valid_fields_beside_an_invalid_field_are_still_checked(tmp_path: Path) -> None:
    text, expected = places("""\
epbuild: 1
name: tiny
toolchains:
  qnn: {packages: [a], ‸pakages: [b]}
models:
  a: {path: ‸"${vars.nothing}", ‸sha265: x}
targets:
  npu: {toolchain: ‸qnm, ep: Q, device: {‸typ: npu}, provider_options: {a: ‸[1], b: 2}}
  gpu: {toolchain: qnn, ep: Q, environment: ‸3, session_options: {x: ‸"${vars.nothing}"}}
groups:
  g: {models: [‸b, ‸3], targets: [npu], compile: {embed: ‸maybe, initializers: {store: external, file: ‸3}}}
outputs:
  - {layout: ‸zip, path: ‸"x${grup}"}
""")
    problems = problems_of(tmp_path, text)
    assert [place for _, *place in codes_and_places(problems)] == [list(place) for place in expected], problems


def test_an_invalid_target_does_not_invalidate_its_groups(tmp_path: Path) -> None:
    text, [place] = places(MINIMAL.replace("    ep: Q", "    ep: ‸${matrix.x}Q"))
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB109", *place)]


def test_an_invalid_variable_does_not_invalidate_its_references(tmp_path: Path) -> None:
    text, [place] = places(MINIMAL.replace("quality: 3", "quality: ‸{}").replace("prefill.onnx", "${vars.quality}.onnx"))
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB105", *place)]


def test_a_mistake_in_a_matrix_target_is_reported_once(tmp_path: Path) -> None:
    text, [place] = places(MINIMAL.replace("    toolchain: qnn", "    matrix: {n: [1, 2, 3]}\n    toolchain: ‸cuda"))
    text = text.replace("targets: [npu]", "targets: [npu-*]")
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB108", *place)]


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "~", "--- # nothing\n...\n"])
def test_an_empty_recipe_is_reported_as_empty(tmp_path: Path, text: str) -> None:
    [problem] = problems_of(tmp_path, text)
    assert (problem.code, problem.message) == ("EPB101", "the recipe is empty")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "3"])
def test_a_recipe_that_is_not_a_mapping_is_reported_at_its_start(tmp_path: Path, text: str) -> None:
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB105", 1, 1)]


def test_text_that_is_not_utf8_is_reported_at_its_first_invalid_byte(tmp_path: Path) -> None:
    assert codes_and_places(problems_of(tmp_path, "name: a\nname: é".encode() + b"\xff")) == [("EPB101", 2, 8)]
    [problem] = problems_of(tmp_path, MINIMAL.encode("utf-16"))
    assert (problem.code, problem.hint) == ("EPB101", "Save the file as UTF-8.")


def test_a_missing_recipe_is_reported_by_path(tmp_path: Path) -> None:
    path = tmp_path / "nothing.yaml"
    with pytest.raises(RecipeError) as raised:
        load(path)
    [problem] = raised.value.problems
    assert (problem.code, problem.where) == ("EPB100", path)
    assert problem.hint
    with pytest.raises(RecipeError, match=r"found a directory.*EPB100"):
        load(tmp_path)


def test_positions_name_the_file_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("name: [", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"^r\.yaml:1:8: "):
        load(Path("r.yaml"))


def test_a_byte_order_mark_does_not_affect_positions_or_the_first_key(tmp_path: Path) -> None:
    load_text(tmp_path, b"\xef\xbb\xbf" + MINIMAL.encode())
    assert codes_and_places(problems_of(tmp_path, b"\xef\xbb\xbfnam: [")) == [("EPB101", 1, 7)]


def test_windows_line_endings_do_not_affect_positions(tmp_path: Path) -> None:
    text, [place] = places(MINIMAL.replace("toolchain: qnn", "toolchain: ‸qn"))
    assert codes_and_places(problems_of(tmp_path, text.replace("\n", "\r\n"))) == [("EPB108", *place)]


def test_columns_count_characters_not_bytes(tmp_path: Path) -> None:
    text, [place] = places(MINIMAL.replace("  prefill: prefill.onnx", "  prefill: {path: é𝄞.onnx, ‸pat: 1}"))
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB103", *place)]
    assert MARK not in text


def test_mistakes_of_several_matrices_are_all_reported(tmp_path: Path) -> None:
    rows = "    matrix: {x: [1, 2]}\n    toolchain: qnn\n    ep: QNNExecutionProvider\n"
    targets = "".join(f"  t{number}:\n{rows}    wrong{number}: 1\n" for number in range(8))
    problems = problems_of(tmp_path, MINIMAL.replace("  npu:\n", f"{targets}  npu:\n"))
    assert [problem.message.split("'")[1] for problem in problems] == [f"wrong{number}" for number in range(8)]
