// Differences: against another report, and what the last build changed in its outputs.

function differencesSum() {
  const published = build?.published ?? [];
  return published.length
    ? [el("p.large", {}, count(published.length), published.length === 1 ? " output" : " outputs"), el("p", {}, "published by the last build")]
    : el("p", {}, "The last build changed no output.");
}

function drawDifferences(section) {
  add(section, el("h3", {}, "What the last build changed"), publishedTable());
}

function publishedTable() {
  return table("Outputs that the last build published or removed, without manifests and provenance", [
    { head: "Output", cell: (row) => [stepLink(row.step, row.path), changedFiles(row)], value: (row) => row.path },
    { head: "Before", numeric: true, cell: (row) => bytes(row.before), value: (row) => row.before },
    { head: "After", numeric: true, cell: (row) => bytes(row.after), value: (row) => row.after },
    { head: "Change", numeric: true, cell: (row) => sizeChange(row), value: (row) => (row.after ?? 0) - (row.before ?? 0) },
  ], build?.published ?? [], { empty: "The last build changed no output." });
}

function sizeChange({ before, after }) {
  if (before === null) return "new";
  if (after === null) return "gone";
  return [change(after - before), before === after ? "" : ` (${percentText(after - before, before)})`];
}

function changedFiles(row) {
  if (!row.files.length) return null;
  return el("details", {}, el("summary", {}, counted(row.files.length, "file"), " with other bytes"),
    listed(row.files, (file) => [file.path, ": ", sizeChange(file)]));
}
