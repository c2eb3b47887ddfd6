// Details of steps, models, targets and outputs, in the panel.

import { parseAddress } from "./addresses.js";
import { countBy, counted, formatNumber, sum } from "./amounts.js";
import {
  bytes,
  copyable,
  count,
  dash,
  definitionList,
  detailLink,
  el,
  errorCode,
  figure,
  fold,
  limitedList,
  message,
  reasonText,
  seconds,
} from "./elements.js";
import { badge, closePanel, openPanel, SHOW_IN_GRAPH } from "./panel.js";
import {
  COVERAGE,
  COVERAGE_WORDS,
  coverageByModel,
  coverageByStep,
  coverageByTarget,
  neededBy,
  outcomeOf,
  outputByStep,
  runReasons,
  stepById,
  targetByName,
  WORST_COVERAGE,
  worstFirst,
} from "./report.js";
import { stackedBar, table } from "./tables.js";

/** Open the details in the address of the page, now and whenever the address changes. */
export function prepareDetails() {
  window.addEventListener("hashchange", (event) => showDetails(new URL(event.newURL).hash));
  showDetails(location.hash);
}

/** @param {string} fragment */
function showDetails(fragment) {
  const address = parseAddress(fragment);
  if (address) openPanel(...findDetails(address), fragment);
  else closePanel();
}

/**
 * Return the title and the contents of an address.
 * @param {import("./addresses.js").Address} address
 * @returns {[string, () => any]}
 */
function findDetails({ step = "", model = "", target = "" }) {
  if (stepById.has(step)) return [step, () => stepDetails(step)];
  const row = coverageByModel.get(model)?.find((one) => one.target === target);
  if (row) return [`${model} for ${target}`, () => cellDetails(row)];
  if (targetByName.has(target) && !model) return [target, () => targetDetails(target)];
  if (coverageByModel.has(model) && !target) return [model, () => modelDetails(model)];
  const name = [step, model, target].filter(Boolean).join(" for ");
  return [name, () => el("p.empty", {}, "This report contains nothing with this name.")];
}

/**
 * @param {string} id
 * @param {string} text
 */
export function stepLink(id, text = id) {
  return stepById.has(id) ? detailLink(text, { step: id }) : el("code", {}, text);
}

/** @param {string} id */
function stepDetails(id) {
  /** @type {any} */
  const step = stepById.get(id);
  const output = outputByStep.get(id);
  const followers = neededBy.get(id) ?? [];
  return [
    el(
      "p",
      {},
      badge(outcomeOf(step), outcomeOf(step)),
      ` ${step.kind}`,
      step.origin ? ` from the ${step.origin} cache` : "",
      step.note ? `: ${step.note}` : "",
    ),
    step.errors.map(errorDetails),
    logEnd(step, true),
    whyList("Why it ran in the last build", runReasons(step)),
    whyList("Why the next build would run it", step.reasons),
    definitionList([
      ["Current state", step.remote ? `${step.state} (result in the remote cache)` : step.state],
      ["Group", step.group],
      ["Target", step.target && targetLink(step.target)],
      [
        "Time in the last build",
        step.work === null ? null : [seconds(step.work), step.started === null ? "" : [" from ", seconds(step.started)]],
      ],
      ["Including its compiles", step.kind === "share" && step.work !== null ? seconds(step.took) : null],
      ["Time when it was built", step.seconds === null ? null : seconds(step.seconds)],
      ["Ran on", step.worker === null ? step.machine : `${step.machine ?? "this machine"}, slot ${step.worker + 1}`],
      ["Peak memory", step.memory === null ? null : bytes(step.memory)],
      ["Size", step.size === null ? null : bytes(step.size)],
      ["Key", step.key && copyable(step.key, "the key", 16)],
    ]),
    (coverageByStep.get(id) ?? [])
      .filter((row) => row.outcome !== "failed")
      .map((row) => [el("h3", {}, `Coverage of ${row.model}`), coverageDetails(row)]),
    output && outputDetails(output),
    el("h3", {}, "Needs"),
    step.needs.length ? limitedList(step.needs, (need) => stepLink(need)) : el("p.empty", {}, "Nothing."),
    el("h3", {}, "Needed by"),
    followers.length ? limitedList(followers, (next) => stepLink(next)) : el("p.empty", {}, "Nothing."),
    el(
      "p.actions",
      {},
      el(
        "button",
        {
          type: "button",
          click: () => {
            closePanel();
            document.dispatchEvent(new CustomEvent(SHOW_IN_GRAPH, { detail: id }));
          },
        },
        "Show in the graph",
      ),
    ),
  ];
}

/**
 * @param {string} title
 * @param {string[]} reasons
 */
function whyList(title, reasons) {
  return reasons.length ? [el("h3", {}, title), limitedList(reasons, (reason) => message(reason))] : [];
}

/** @param {import("./report-types.d.ts").Error} error */
function errorDetails(error) {
  return el(
    "div.error",
    {},
    el("p", {}, errorCode(error.code)),
    reasonText(error.message),
    error.reason && !error.message.includes(error.reason) ? reasonText(error.reason) : null,
    error.hint ? el("p.hint", {}, message(error.hint)) : null,
    error.step ? el("p", {}, "Caused by ", stepLink(error.step)) : null,
  );
}

/**
 * Return the end of the log of a failed step.
 * @param {import("./report.js").Step | undefined} step
 * @param {boolean} open
 */
export function logEnd(step, open = false) {
  if (!step?.log) return null;
  const lines = counted(step.log.split("\n").length, "line");
  const label = `Last ${lines} of the log of ${step.id}`;
  return el(
    "details.fold",
    { open },
    el("summary", {}, label),
    el("pre.log", { tabindex: 0, role: "region", "aria-label": label }, step.log),
  );
}

/** @param {import("./report-types.d.ts").Coverage} row */
function cellDetails(row) {
  return [
    coverageDetails(row),
    [row.step, verifyStep(row), measureStep(row)].flatMap((step) => stepById.get(step)?.errors ?? []).map(errorDetails),
    definitionList([
      ["Model", detailLink(row.model, { model: row.model })],
      ["Target", targetLink(row.target)],
      ["Step", stepLink(row.step)],
      ["Verified by", stepById.has(verifyStep(row)) ? stepLink(verifyStep(row)) : null],
      ["Measured by", stepById.has(measureStep(row)) ? stepLink(measureStep(row)) : null],
    ]),
  ];
}

/** @param {import("./report-types.d.ts").Coverage} row */
function verifyStep(row) {
  return `verify:${row.group}/${row.target}`;
}

/** @param {import("./report-types.d.ts").Coverage} row */
function measureStep(row) {
  return `measure:${row.group}/${row.target}`;
}

/** @param {import("./report-types.d.ts").Coverage} row */
function coverageDetails(row) {
  const words = row.outcome === "partial" ? [count(row.fallback_nodes), " fallback nodes"] : COVERAGE_WORDS[row.outcome];
  return [
    el("p", {}, badge(words, row.outcome)),
    row.reason ? reasonText(row.reason) : null,
    row.outside.map(operatorOutside),
    definitionList([
      ["EPContext nodes", row.ep_context_nodes === null ? null : count(row.ep_context_nodes)],
      ["Size", row.size === null ? null : bytes(row.size)],
      ["Compile time", row.seconds === null ? null : seconds(row.seconds)],
      ["Accuracy, worst output", row.accuracy && figures(row.accuracy)],
    ]),
    row.contexts.map(contextParts),
  ];
}

/**
 * Return the sizes of the parts of a context binary.
 * @param {import("./report-types.d.ts").Context} context
 */
function contextParts(context) {
  const rest = context.size - sum(context.parts, (part) => part.size);
  return table(
    "Size of the context binary by part",
    [
      { head: "Part", cell: (part) => `${part.kind} ${part.name}`.trim() },
      { head: "Size", numeric: true, cell: (part) => bytes(part.size) },
    ],
    context.parts.length ? [...context.parts, { kind: "headers and padding", name: "", size: rest }] : [],
    { most: 6, empty: "The EP lists no parts of this context." },
  );
}

/**
 * Return the fallback nodes of an operator, with reason and advice.
 * @param {import("./report-types.d.ts").Operator} one
 */
function operatorOutside(one) {
  return el(
    "section.operator",
    {},
    el("h3", {}, count(one.count), " ", el("code", {}, one.operator)),
    reasonText(one.reason ?? "The EP logged no reason."),
    one.advice.map((advice) => el("p.hint", {}, message(advice))),
    one.nodes.length
      ? fold(
          counted(one.nodes.length, "node"),
          limitedList(one.nodes, (node) => el("code", {}, node), 40),
        )
      : null,
  );
}

/** @param {Record<string, number | null>} values */
function figures(values) {
  const known = Object.entries(values).filter(([, value]) => value !== null);
  return known.map(([name, value], place) => [place ? ", " : "", `${name} `, figure(value)]);
}

/** @param {string} name */
function modelDetails(name) {
  const rows = worstFirst(coverageByModel.get(name) ?? [], (row) => [row]);
  return [
    coverageSum(rows),
    table(
      "For each target",
      [
        { head: "Target", cell: (row) => targetLink(row.target), value: (row) => row.target },
        { head: "Coverage", cell: (row) => coverageLink(row), value: (row) => WORST_COVERAGE.indexOf(row.outcome) },
        { head: "Size", numeric: true, cell: (row) => bytes(row.size), value: (row) => row.size },
        { head: "Compile time", numeric: true, cell: (row) => seconds(row.seconds), value: (row) => row.seconds },
      ],
      rows,
    ),
  ];
}

/** @param {string} name */
export function targetLink(name) {
  return detailLink(name, { target: name });
}

/**
 * Return the details of a target: models by coverage, worst first, each with a link to its details.
 * @param {string} name
 */
function targetDetails(name) {
  const target = targetByName.get(name);
  const rows = worstFirst(coverageByTarget.get(name) ?? [], (row) => [row]);
  return [
    coverageSum(rows),
    WORST_COVERAGE.map((outcome) => {
      const found = rows.filter((row) => row.outcome === outcome);
      return found.length
        ? [
            el(
              "h3",
              {},
              COVERAGE_WORDS[outcome][0].toUpperCase() + COVERAGE_WORDS[outcome].slice(1),
              ` (${formatNumber(found.length)})`,
            ),
            limitedList(found, (row) => coverageLink(row, row.model), 200),
          ]
        : [];
    }),
    target &&
      definitionList([
        ["SoC", target.soc],
        ["Toolchain", target.toolchain],
        ["Platforms", target.platforms.join(", ")],
      ]),
    target &&
      table(
        "EPs, in order",
        [
          { head: "EP", cell: (one) => one.ep },
          { head: "Version", cell: (one) => [one.package, " ", one.version ?? ""] },
          { head: "Device", cell: (one) => one.device ?? dash() },
          {
            head: "Options",
            cell: (one) => Object.entries(one.options).map(([key, value]) => el("div", {}, el("code", {}, `${key}: ${value}`))),
          },
        ],
        target.eps,
      ),
  ];
}

/**
 * @param {import("./report-types.d.ts").Coverage} row
 * @param {string} [text]
 */
function coverageLink(row, text) {
  const words = row.outcome === "partial" ? `${formatNumber(row.fallback_nodes ?? 0)} fallback` : COVERAGE_WORDS[row.outcome];
  return el(
    "span",
    {},
    badge(words, row.outcome),
    " ",
    detailLink(
      text ?? "Details",
      { model: row.model, target: row.target },
      text ? {} : { "aria-label": `Details of ${row.model} for ${row.target}` },
    ),
  );
}

/**
 * Return the number of models by coverage, with a bar.
 * @param {import("./report-types.d.ts").Coverage[]} rows
 */
export function coverageSum(rows) {
  const counts = countBy(rows, (row) => row.outcome);
  const words = COVERAGE.filter((outcome) => counts.get(outcome));
  const label = words.map((outcome) => `${counts.get(outcome)} ${COVERAGE_WORDS[outcome]}`).join(", ");
  return [
    el(
      "p.sum",
      {},
      words.map((outcome, place) => [place ? ", " : "", count(counts.get(outcome)), ` ${COVERAGE_WORDS[outcome]}`]),
    ),
    stackedBar(
      COVERAGE.map((kind) => ({ kind: kind.replaceAll(" ", "-"), amount: counts.get(kind) ?? 0 })),
      rows.length,
      label,
    ),
  ];
}

/** @param {import("./report-types.d.ts").Output} output */
function outputDetails(output) {
  return [
    el("h3", {}, "Output"),
    definitionList([
      ["Path", copyable(output.path, "the path", 60)],
      ["Layout", output.archive ? `${output.layout}, as ${output.archive}` : output.layout],
      ["Pushed as", output.registry],
      ["In place", output.in_place ? "yes" : "no"],
      ["Key", output.key && copyable(output.key, "the key", 16)],
      ["Provenance", output.provenance],
    ]),
    fold(
      counted(output.files.length, "file"),
      table(
        "Files",
        [
          { head: "File", cell: (file) => file.path, value: (file) => file.path },
          { head: "Size", numeric: true, cell: (file) => bytes(file.size), value: (file) => file.size },
          { head: "SHA-256", cell: (file) => copyable(file.sha256, `the SHA-256 of ${file.path}`) },
        ],
        output.files,
      ),
    ),
  ];
}
