// Differences section: changes against another report or outputs, and outputs that the last build changed.

import { counted, formatMoment, formatNumber, formatSignedPercent } from "./amounts.js";
import { stepLink, targetLink } from "./details.js";
import { add, bytes, change, copyable, count, definitionList, detailLink, el, figure, limitedList, seconds } from "./elements.js";
import { badge } from "./panel.js";
import { build, COVERAGE_WORDS, report, WORST_COVERAGE } from "./report.js";
import { table } from "./tables.js";

/** @typedef {import("./report-types.d.ts").ModelChange} ModelChange */
/** @typedef {import("./report-types.d.ts").ComparedModel} ComparedModel */
/** @typedef {{ path: string, before: number | null, after: number | null }} SizeChange */
/** @typedef {import("./report-types.d.ts").Against} Against */

/** Return the summary for the overview. */
export function differencesSum() {
  const { against } = report;
  if (against) {
    return [
      el(
        "p",
        {},
        count(against.models.length),
        against.models.length === 1 ? " model" : " models",
        ", ",
        count(against.outputs.length),
        against.outputs.length === 1 ? " output" : " outputs",
      ),
      el(
        "p",
        {},
        against.kind === "report" && against.made_at
          ? `since the report of ${formatMoment(against.made_at)}`
          : `since ${against.path}`,
      ),
    ];
  }
  const published = build?.published ?? [];
  return published.length
    ? [
        el("div.large", {}, count(published.length), published.length === 1 ? " output" : " outputs"),
        el("p", {}, "emitted by the last build"),
      ]
    : el("p", {}, "The last build changed no output.");
}

/** @param {Element} section */
export function drawDifferences(section) {
  if (report.against) drawAgainst(section, report.against);
  add(section, emittedTable());
}

/**
 * @param {Element} section
 * @param {Against} against
 */
function drawAgainst(section, against) {
  const nothing = !against.models.length && !against.outputs.length && !against.versions.length && !against.sources.length;
  add(
    section,
    definitionList([
      [
        "Compared with",
        [copyable(against.path, "the path", 60), against.recipe === report.recipe.name ? "" : ` (recipe ${against.recipe})`],
      ],
      ["Written", against.made_at && `${formatMoment(against.made_at)} by epbuild ${against.epbuild}`],
      [
        "The build took",
        against.build_seconds === null || !build
          ? null
          : [seconds(build.seconds), ", previously ", seconds(against.build_seconds)],
      ],
    ]),
    nothing
      ? el("p.empty", {}, "No differences.")
      : [
          modelChanges(against),
          outputChanges(against),
          against.sources.length ? sourceChanges(against) : null,
          against.versions.length ? versionChanges(against) : null,
        ],
  );
}

/** @param {Against} against */
function modelChanges(against) {
  return table(
    "Models that differ, greatest loss of coverage first",
    [
      { head: "Model", cell: (row) => changedModel(row), value: (row) => `${row.group} ${row.member}` },
      { head: "Target", cell: (row) => targetLink(row.target), value: (row) => row.target },
      { head: "Coverage", cell: (row) => coverageChange(row), value: takenMore },
      { head: "Size", numeric: true, cell: (row) => modelSizeChange(row), value: (row) => difference(row, (side) => side.size) },
      {
        head: "Compile time",
        numeric: true,
        cell: (row) => timeChange(row),
        value: (row) => difference(row, (side) => side.seconds),
      },
      { head: "Accuracy", cell: (row) => accuracyChange(row) },
    ],
    [...against.models].sort((a, b) => takenMore(a) - takenMore(b)),
  );
}

/** @param {ModelChange} row */
function changedModel(row) {
  const now = report.coverage.find((one) => one.group === row.group && one.member === row.member && one.target === row.target);
  return now ? detailLink(now.model, { model: now.model, target: now.target }) : `${row.group}/${row.member}`;
}

/**
 * Return how much the coverage of a model improved. The number is negative if the EP takes fewer nodes than before.
 * @param {ModelChange} row
 */
function takenMore({ before, after }) {
  const rank = (/** @type {ComparedModel} */ side) => 1000 * WORST_COVERAGE.indexOf(side.outcome) - (side.fallback_nodes ?? 0);
  return before && after ? rank(after) - rank(before) : 0;
}

/** @param {ModelChange} row */
function coverageChange({ before, after }) {
  if (!before) return after && ["new, ", coveredBadge(after)];
  if (!after) return ["removed, was ", coveredBadge(before)];
  const same = before.outcome === after.outcome && before.fallback_nodes === after.fallback_nodes;
  return same ? coveredBadge(after) : [coveredBadge(before), " → ", coveredBadge(after)];
}

/** @param {ComparedModel} side */
function coveredBadge(side) {
  return badge(
    side.outcome === "partial" ? `${formatNumber(side.fallback_nodes ?? 0)} fallback` : COVERAGE_WORDS[side.outcome],
    side.outcome,
  );
}

/**
 * Return how much an amount of a model grew, or null if either amount is unknown.
 * @param {ModelChange} row
 * @param {(side: ComparedModel) => number | null} amount
 */
function difference({ before, after }, amount) {
  const [old, now] = [before && amount(before), after && amount(after)];
  return old === null || now === null ? null : now - old;
}

/** @param {ModelChange} row */
function modelSizeChange(row) {
  const by = difference(row, (side) => side.size);
  const size = bytes((row.after ?? row.before)?.size);
  return by ? [size, " (", change(by), ")"] : size;
}

/** @param {ModelChange} row */
function timeChange(row) {
  const by = difference(row, (side) => side.seconds);
  const time = seconds((row.after ?? row.before)?.seconds);
  return by ? [seconds(row.before?.seconds), " → ", time] : time;
}

/** @param {ModelChange} row */
function accuracyChange({ before, after }) {
  const [old, now] = [before?.accuracy ?? {}, after?.accuracy ?? {}];
  const names = [...new Set([...Object.keys(old), ...Object.keys(now)])].filter((name) => old[name] !== now[name]);
  return names.map((name) => el("div", {}, `${name} `, figure(old[name]), " → ", figure(now[name])));
}

/** @param {Against} against */
function outputChanges(against) {
  return table(
    "Outputs that differ (manifests and provenance are ignored)",
    [
      {
        head: "Output",
        cell: (row) => [
          el("code", {}, row.path),
          changedFiles(
            row.files.map((file) => ({ ...file, before: file.before?.size ?? null, after: file.after?.size ?? null })),
          ),
        ],
        value: (row) => row.path,
      },
      { head: "Before", numeric: true, cell: (row) => bytes(row.before), value: (row) => row.before },
      { head: "After", numeric: true, cell: (row) => bytes(row.after), value: (row) => row.after },
      { head: "Change", numeric: true, cell: sizeChange, value: (row) => (row.after ?? 0) - (row.before ?? 0) },
    ],
    against.outputs,
  );
}

/** @param {Against} against */
function sourceChanges(against) {
  return table(
    "Source models whose files differ",
    [
      { head: "Model", cell: (row) => row.model, value: (row) => row.model },
      { head: "SHA-256 before", cell: (row) => copyable(row.before, `the previous SHA-256 of ${row.model}`) },
      { head: "SHA-256 now", cell: (row) => copyable(row.after, `the SHA-256 of ${row.model}`) },
      { head: "External data", cell: (row) => (row.data ? "differs" : "") },
    ],
    against.sources,
  );
}

/** @param {Against} against */
function versionChanges(against) {
  return table(
    "Packages with a different version",
    [
      { head: "Toolchain", cell: (row) => row.toolchain, value: (row) => row.toolchain },
      { head: "Package", cell: (row) => row.package, value: (row) => row.package },
      { head: "Before", cell: (row) => row.before ?? "none" },
      { head: "Now", cell: (row) => row.after ?? "removed" },
    ],
    against.versions,
  );
}

function emittedTable() {
  return table(
    "Outputs that the last build emitted or removed (manifests and provenance are ignored)",
    [
      { head: "Output", cell: (row) => [stepLink(row.step, row.path), changedFiles(row.files)], value: (row) => row.path },
      { head: "Before", numeric: true, cell: (row) => bytes(row.before), value: (row) => row.before },
      { head: "After", numeric: true, cell: (row) => bytes(row.after), value: (row) => row.after },
      { head: "Change", numeric: true, cell: sizeChange, value: (row) => (row.after ?? 0) - (row.before ?? 0) },
    ],
    build?.published ?? [],
    { empty: "The last build changed no output." },
  );
}

/** @param {{ before: number | null, after: number | null }} size */
function sizeChange({ before, after }) {
  if (before === null) return "new";
  if (after === null) return "removed";
  return [change(after - before), before === after || !before ? "" : ` (${formatSignedPercent(after - before, before)})`];
}

/** @param {SizeChange[]} files */
function changedFiles(files) {
  if (!files.length) return null;
  return el(
    "details",
    {},
    el("summary", {}, counted(files.length, "file"), " with different content"),
    limitedList(files, (file) => [file.path, ": ", sizeChange(file)]),
  );
}
