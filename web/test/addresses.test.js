import assert from "node:assert/strict";
import { test } from "node:test";
import { formatAddress, parseAddress } from "../src/addresses.js";

test("the address of a step is readable", () => {
  assert.equal(formatAddress({ step: "compile:vad/phone/vad" }), "#step=compile:vad/phone/vad");
});

test("a name with any characters can be sent", () => {
  const name = "a b&target=c#+%/:\u00e9<script>";
  assert.deepEqual(parseAddress(formatAddress({ model: name, target: "t" })), { model: name, target: "t" });
});

test("the name of a section is no address", () => {
  assert.equal(parseAddress("#overview"), null);
  assert.equal(parseAddress(""), null);
});
