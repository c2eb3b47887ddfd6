// Provenance section: digests of the recipe, the models and the outputs. Lock section: packages of the toolchains.

import { counted, formatMoment } from "./amounts.js";
import { stepLink } from "./details.js";
import { add, bytes, copyable, count, dash, definitionList, el, fold, limitedList } from "./elements.js";
import { build, report } from "./report.js";
import { table } from "./tables.js";

/** @param {Element} section */
export function drawProvenance(section) {
  add(
    section,
    definitionList([
      ["Recipe", copyable(report.recipe.path, "the path", 60)],
      ["SHA-256 of the recipe", copyable(report.recipe.sha256, "the SHA-256 of the recipe", 16)],
      ["Report written", `${formatMoment(report.made_at)} by epbuild ${report.epbuild}`],
      [
        "Machine",
        [report.machine.name, report.machine.platform, report.machine.cpu, counted(report.machine.cpus, "CPU")]
          .filter(Boolean)
          .join(", "),
      ],
      ["Memory", report.machine.memory === null ? null : bytes(report.machine.memory)],
      [
        "Last build",
        build && `${formatMoment(build.began)} by epbuild ${build.epbuild} on ${build.machine}, exit code ${build.exit_code}`,
      ],
    ]),
    (build?.remote ?? []).map((one) =>
      el(
        "p",
        {},
        `Remote cache ${one.remote}: `,
        count(one.found),
        " of ",
        count(one.asked),
        " results found, ",
        bytes(one.received_bytes),
        " downloaded, ",
        bytes(one.sent_bytes),
        " uploaded.",
      ),
    ),
    fold(
      counted(report.models.length, "source model"),
      table(
        "Source models",
        [
          { head: "Model", cell: (model) => model.name, value: (model) => model.name },
          { head: "Groups", cell: (model) => model.groups.join(", "), value: (model) => model.groups.join(", ") },
          { head: "Source", cell: (model) => el("code", {}, model.source), value: (model) => model.source },
          { head: "Size", numeric: true, cell: (model) => bytes(model.size), value: (model) => model.size },
          {
            head: "SHA-256",
            cell: (model) => [
              copyable(model.sha256, `the SHA-256 of ${model.name}`),
              model.data.map((file) =>
                el("div", {}, `${file.location} `, copyable(file.sha256, `the SHA-256 of ${file.location}`)),
              ),
            ],
          },
        ],
        report.models,
        { most: 15 },
      ),
    ),
    fold(
      `${counted(report.outputs.length, "output")} with files`,
      table(
        "Outputs and their files",
        [
          { head: "Output", cell: (output) => stepLink(output.step, output.path), value: (output) => output.path },
          { head: "Key", cell: (output) => copyable(output.key, `the key of ${output.path}`) },
          { head: "Provenance", cell: (output) => output.provenance ?? dash(), value: (output) => output.provenance },
          {
            head: "Files, SHA-256",
            cell: (output) =>
              limitedList(output.files, (file) => [file.path, " ", copyable(file.sha256, `the SHA-256 of ${file.path}`)], 3),
          },
        ],
        report.outputs,
        { most: 15 },
      ),
    ),
  );
}

/** @param {Element} section */
export function drawLock(section) {
  if (!report.toolchains.length) add(section, el("p.empty", {}, "The recipe has no toolchain."));
  add(
    section,
    ...report.toolchains.map((toolchain) =>
      el(
        "section",
        {},
        el("h3", {}, toolchain.name),
        definitionList([
          ["Requires", toolchain.requires.join(", ")],
          ["Interpreter", toolchain.interpreter],
          ["Python", toolchain.python],
          ["Platform", toolchain.platform],
          ["Locked", toolchain.locked ? "yes" : "no"],
        ]),
        fold(
          counted(toolchain.packages.length, "package"),
          table(
            `Packages of ${toolchain.name}`,
            [
              { head: "Package", cell: (one) => one.name, value: (one) => one.name },
              { head: "Version", cell: (one) => one.version, value: (one) => one.version },
              {
                head: "SHA-256 in the lock",
                cell: (one) =>
                  one.sha256.length
                    ? limitedList(one.sha256, (digest) => copyable(digest, `a SHA-256 of ${one.name}`), 2)
                    : dash(),
              },
            ],
            toolchain.packages,
            { most: 15, empty: "Unknown: no build has created this environment here yet." },
          ),
        ),
      ),
    ),
  );
}
