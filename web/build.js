// Bundles the scripts of the page. `npm run build` writes the bundle, the licenses of the packages in it, and the types of a report.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { build } from "esbuild";
import { reportTypes } from "./types.js";

const folder = resolve(process.argv[2] ?? "../epbuild/report/html/page");
const types = process.argv[2] ? resolve(folder, "report-types.d.ts") : resolve("src/report-types.d.ts");

const { outputFiles, metafile } = await build({
  entryPoints: ["src/main.js"],
  bundle: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  minify: true,
  metafile: true,
  write: false,
});
const [bundled] = Object.values(metafile.outputs);
const used = Object.entries(bundled.inputs).filter(([, { bytesInOutput }]) => bytesInOutput > 0);
const packages = new Set(used.flatMap(([path]) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1] ?? []));
const licenses = [...packages].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`;
});

mkdirSync(folder, { recursive: true });
writeFileSync(resolve(folder, "report.js"), outputFiles[0].text);
writeFileSync(resolve(folder, "LICENSES.txt"), licenses.join(`\n${"-".repeat(80)}\n\n`));
writeFileSync(types, reportTypes());
